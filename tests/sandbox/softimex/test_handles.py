"""Whether a daemon grants an import, for any handle and any importer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from imex_sandbox.softimex import handles
from imex_sandbox.softimex.errors import CudaError
from imex_sandbox.softimex.handles import Exports, Importer
from imex_sandbox.softimex.noderoot import Hardware
from imex_sandbox.softimex.peerstate import Identity

EXPORTER = Identity(3, "00112233445566aa", "580.1", "map")
HARDWARE = Hardware("580.1", "p.1", 4, "")


def code(exports: Exports, handle: bytes, importer: Importer, hardware: Hardware = HARDWARE) -> int:
    """0 if the import is granted, otherwise the CUDA error code."""
    try:
        exports.grant(handle, importer, hardware)
    except CudaError as error:
        return error.code
    return 0


@pytest.fixture
def exports() -> Exports:
    return Exports(EXPORTER)


def test_a_handle_has_64_bytes_and_names_its_export(exports: Exports) -> None:
    export = exports.add(5, "file", 4096)
    data = exports.handle(export.number, "p.1")
    handle = handles.parse(data)
    assert len(data) == 64
    assert handle[:4] == (3, "00112233445566aa", export.number, 4096)


@pytest.mark.parametrize("partition", ["p.2", ""])
def test_a_handle_of_another_partition_is_refused_before_any_node_is_asked(
    exports: Exports, partition: str
) -> None:
    """Indexes of nodes mean other nodes in another partition, so the answer of a node there would be wrong."""
    handle = handles.parse(exports.handle(exports.add(5, "file", 4096).number, "p.1"))
    handles.check_partition(handle, HARDWARE)
    with pytest.raises(CudaError, match=f"another NVLink partition; the importer is in '{partition}'") as refusal:
        handles.check_partition(handle, HARDWARE._replace(partition=partition))
    assert refusal.value.code == 801


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
def test_exporter_and_importer_need_the_same_channel_and_the_same_partition(
    exports: Exports, importer: Importer, hardware: Hardware, expected: int
) -> None:
    handle = exports.handle(exports.add(5, "file", 4096).number, "p.1")
    assert code(exports, handle, importer, hardware) == expected


@given(st.integers(0, 63), st.integers(1, 255))
def test_a_handle_with_any_changed_byte_is_invalid(position: int, change: int) -> None:
    exports = Exports(EXPORTER)
    handle = bytearray(exports.handle(exports.add(5, "file", 4096).number, "p.1"))
    handle[position] ^= change
    assert code(exports, bytes(handle), Importer(1, 5, "p.1")) == CudaError.INVALID_HANDLE


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_not_a_valid_handle(data: bytes) -> None:
    assert code(Exports(EXPORTER), data, Importer(1, 5, "p.1")) == CudaError.INVALID_HANDLE


def test_a_handle_of_a_previous_instance_is_invalid() -> None:
    before, after = Exports(EXPORTER), Exports(EXPORTER._replace(instance="ff" * 8))
    handle = before.handle(before.add(5, "file", 4096).number, "p.1")
    after.add(5, "file", 4096)
    assert code(after, handle, Importer(1, 5, "p.1")) == CudaError.INVALID_HANDLE
    same_identity = Exports(EXPORTER)  # but another key
    same_identity.add(5, "file", 4096)
    assert code(same_identity, handle, Importer(1, 5, "p.1")) == CudaError.INVALID_HANDLE


class ExportsMachine(RuleBasedStateMachine):
    """Random exports, imports, releases and frees, against a model that knows what must be granted."""

    exported = Bundle("exported")

    def __init__(self) -> None:
        super().__init__()
        self.exports = Exports(EXPORTER)
        self.channels: dict[int, int] = {}
        self.imported: set[tuple[int, int]] = set()

    @rule(target=exported, channel=st.integers(0, 3))
    def export(self, channel: int) -> tuple[int, bytes]:
        export = self.exports.add(channel, "file", 4096)
        self.channels[export.number] = channel
        return export.number, self.exports.handle(export.number, "p.1")

    @rule(handle=consumes(exported))
    def free(self, handle: tuple[int, bytes]) -> None:
        self.exports.remove(handle[0])
        del self.channels[handle[0]]
        self.imported = {(number, index) for number, index in self.imported if number != handle[0]}
        assert code(self.exports, handle[1], Importer(1, 0, "p.1")) == CudaError.INVALID_HANDLE

    @rule(handle=exported, index=st.integers(0, 5), channel=st.integers(0, 3))
    def import_(self, handle: tuple[int, bytes], index: int, channel: int) -> None:
        number, data = handle
        expected = 0 if self.channels[number] == channel else CudaError.NOT_PERMITTED
        assert code(self.exports, data, Importer(index, channel, "p.1")) == expected
        if not expected and index != EXPORTER.node_index:
            self.imported.add((number, index))

    @rule(handle=exported, index=st.integers(0, 5))
    def release(self, handle: tuple[int, bytes], index: int) -> None:
        self.exports.release(handle[0], index)
        self.imported.discard((handle[0], index))

    @rule(index=st.integers(0, 5))
    def lose(self, index: int) -> None:
        self.exports.remove_importer(index)
        self.imported = {(number, importer) for number, importer in self.imported if importer != index}

    @invariant()
    def importers_are_those_of_the_model(self) -> None:
        assert self.exports.importers() == {index for _, index in self.imported}


TestExportsMachine = ExportsMachine.TestCase
