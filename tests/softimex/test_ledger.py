"""The decision on an import, for all handles and all importers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from imex_dra.softimex import handles
from imex_dra.softimex.errors import CudaError
from imex_dra.softimex.identity import Identity
from imex_dra.softimex.ledger import Importer, Ledger
from imex_dra.softimex.noderoot import Hardware

EXPORTER = Identity(3, "00112233445566aa", "580.1", "map")
HARDWARE = Hardware("580.1", "p.1", 4, "")


def code(ledger: Ledger, handle: bytes, importer: Importer, hardware: Hardware = HARDWARE) -> int:
    """0 if the import is granted, else CUDA's number."""
    try:
        ledger.grant(handle, importer, hardware)
    except CudaError as error:
        return error.code
    return 0


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(EXPORTER)


def test_a_handle_has_64_bytes_and_says_what_it_stands_for(ledger: Ledger) -> None:
    export = ledger.add(5, "file", 4096)
    data = ledger.handle(export.number)
    handle = handles.read(data)
    assert len(data) == 64
    assert handle[:4] == (3, "00112233445566aa", export.number, 4096)


@pytest.mark.parametrize(
    ("importer", "hardware", "expected"),
    [
        (Importer(1, 5, "p.1"), HARDWARE, 0),
        (Importer(3, 5, "p.1"), HARDWARE, 0),
        (Importer(1, 6, "p.1"), HARDWARE, CudaError.NOT_PERMITTED),
        (Importer(3, 6, "p.1"), HARDWARE, CudaError.NOT_PERMITTED),
        (Importer(1, 5, "p.2"), HARDWARE, CudaError.NOT_SUPPORTED),
        (Importer(1, 5, ""), HARDWARE, CudaError.NOT_SUPPORTED),
        (Importer(1, 5, "p.1"), HARDWARE._replace(problem="broken"), CudaError.NOT_SUPPORTED),
    ],
)
def test_channel_and_partition_must_be_the_same(
    ledger: Ledger, importer: Importer, hardware: Hardware, expected: int
) -> None:
    handle = ledger.handle(ledger.add(5, "file", 4096).number)
    assert code(ledger, handle, importer, hardware) == expected


@given(st.integers(0, 63), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(position: int, change: int) -> None:
    ledger = Ledger(EXPORTER)
    handle = bytearray(ledger.handle(ledger.add(5, "file", 4096).number))
    handle[position] ^= change
    assert code(ledger, bytes(handle), Importer(1, 5, "p.1")) == CudaError.INVALID_HANDLE


@given(st.binary(max_size=80))
def test_no_invented_handle_is_taken(data: bytes) -> None:
    assert code(Ledger(EXPORTER), data, Importer(1, 5, "p.1")) == CudaError.INVALID_HANDLE


def test_a_handle_of_another_instance_is_stale_even_if_all_else_is_equal() -> None:
    before, after = Ledger(EXPORTER), Ledger(EXPORTER._replace(instance="ff" * 8))
    handle = before.handle(before.add(5, "file", 4096).number)
    after.add(5, "file", 4096)
    assert code(after, handle, Importer(1, 5, "p.1")) == CudaError.INVALID_HANDLE
    resealed = Ledger(EXPORTER)
    resealed.add(5, "file", 4096)
    assert code(resealed, handle, Importer(1, 5, "p.1")) == CudaError.INVALID_HANDLE


class LedgerMachine(RuleBasedStateMachine):
    """Exports come and go, importers take and give back; the model knows what must be granted."""

    exported = Bundle("exported")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(EXPORTER)
        self.alive: dict[int, int] = {}
        self.held: set[tuple[int, int]] = set()

    @rule(target=exported, channel=st.integers(0, 3))
    def export(self, channel: int) -> tuple[int, bytes]:
        export = self.ledger.add(channel, "file", 4096)
        self.alive[export.number] = channel
        return export.number, self.ledger.handle(export.number)

    @rule(handle=consumes(exported))
    def free(self, handle: tuple[int, bytes]) -> None:
        self.ledger.remove(handle[0])
        del self.alive[handle[0]]
        self.held = {(number, slot) for number, slot in self.held if number != handle[0]}
        assert code(self.ledger, handle[1], Importer(1, 0, "p.1")) == CudaError.INVALID_HANDLE

    @rule(handle=exported, slot=st.integers(0, 5), channel=st.integers(0, 3))
    def import_(self, handle: tuple[int, bytes], slot: int, channel: int) -> None:
        number, data = handle
        expected = 0 if self.alive[number] == channel else CudaError.NOT_PERMITTED
        assert code(self.ledger, data, Importer(slot, channel, "p.1")) == expected
        if not expected and slot != EXPORTER.slot:
            self.held.add((number, slot))

    @rule(handle=exported, slot=st.integers(0, 5))
    def release(self, handle: tuple[int, bytes], slot: int) -> None:
        self.ledger.release(handle[0], slot)
        self.held.discard((handle[0], slot))

    @rule(slot=st.integers(0, 5))
    def lose(self, slot: int) -> None:
        self.ledger.forget_importer(slot)
        self.held = {(number, holder) for number, holder in self.held if holder != slot}

    @invariant()
    def knows_its_importers(self) -> None:
        assert self.ledger.importers() == {slot for _, slot in self.held}


TestLedgerMachine = LedgerMachine.TestCase
