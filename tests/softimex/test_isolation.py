"""Who may not have memory: each refusal is a daemon's, seen from a process of its own or over the raw protocol."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imex_dra.softimex import channels, descriptors
from imex_dra.softimex.errors import CudaError
from imex_dra.softimex.frames import Decoder, Message, encode
from tests.softimex.rack import Node, Rack
from tests.softimex.workload import CHANNELS, Workload, give_channels

pytestmark = pytest.mark.timeout(300)

MakeWorkload = Callable[[Node, int | Path], Workload]


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    """Three nodes of one IMEX domain; the third is in another partition."""
    rack = Rack(3)
    rack.nodes[2].set_hardware(partition="7b968a6d-c8aa-45e1-9e07-e1e51be99c31.2")
    for node in rack.nodes:
        give_channels(node, 5, 7)
    rack.start()
    yield rack
    rack.close()


@pytest.fixture
def secret(rack: Rack, on: MakeWorkload) -> str:
    """A handle of memory on channel 5 of the first node."""
    return on(rack.nodes[0], 5).export(content="secret")


def refusal(workload: Workload, *call: Any) -> CudaError:
    with pytest.raises(CudaError) as error:
        workload.call(*call)
    assert error.value.why
    return error.value


def test_the_same_channel_works(rack: Rack, on: MakeWorkload, secret: str) -> None:
    importer = on(rack.nodes[1], 5)
    importer.attach(secret)
    assert importer.read(6) == "secret"


def test_another_channel_is_refused(rack: Rack, on: MakeWorkload, secret: str) -> None:
    for node in rack.nodes[:2]:
        error = refusal(on(node, 7), "attach", secret)
        assert (error.code, "channel 7" in error.why) == (CudaError.NOT_PERMITTED, True)


def test_another_partition_is_refused(rack: Rack, on: MakeWorkload, secret: str) -> None:
    error = refusal(on(rack.nodes[2], 5), "attach", secret)
    assert (error.code, "partition" in error.why) == (CudaError.NOT_SUPPORTED, True)


def test_another_domain_is_refused(rack: Rack, on: MakeWorkload, secret: str) -> None:
    """A rack that shares the fabric directory, but not the IMEX domain."""
    other = Rack(1)
    own_fabric, other.fabric = other.fabric, rack.fabric
    try:
        give_channels(other.nodes[0], 5)
        other.start()
        error = refusal(on(other.nodes[0], 5), "attach", secret)
        assert error.code == CudaError.INVALID_HANDLE
        foreign = bytearray.fromhex(secret)
        foreign[6:8] = (1).to_bytes(2)
        assert refusal(on(other.nodes[0], 5), "attach", foreign.hex()).code == CudaError.INVALID_HANDLE
    finally:
        other.fabric = own_fabric
        other.close()


@pytest.mark.parametrize("position", [0, 4, 7, 8, 16, 23, 31, 32, 48, 63])
def test_a_forged_handle_is_refused(rack: Rack, on: MakeWorkload, secret: str, position: int) -> None:
    forged = bytearray.fromhex(secret)
    forged[position] ^= 1
    assert refusal(on(rack.nodes[1], 5), "attach", forged.hex()).code == CudaError.INVALID_HANDLE


def test_what_is_no_handle_is_refused(rack: Rack, on: MakeWorkload) -> None:
    importer = on(rack.nodes[1], 5)
    for handle in ("", "00" * 64, "ff" * 63, "ff" * 65):
        assert refusal(importer, "attach", handle).code == CudaError.INVALID_HANDLE


def test_a_handle_is_worth_nothing_after_free(rack: Rack, on: MakeWorkload) -> None:
    exporter, importer = on(rack.nodes[0], 5), on(rack.nodes[1], 5)
    handle = exporter.export()
    exporter.call("free")
    assert refusal(importer, "attach", handle).code == CudaError.INVALID_HANDLE
    exporter.export()
    assert refusal(importer, "attach", handle).code == CudaError.INVALID_HANDLE


def test_a_process_without_a_channel_gets_nothing(rack: Rack, on: MakeWorkload) -> None:
    assert refusal(on(rack.nodes[0], Path("/run/imex/channel")), "number").code == CudaError.NOT_PERMITTED


class Raw:
    """A process that does not use the library, and says what it likes."""

    def __init__(self, node: Node) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(60)
        self._sock.connect(str(node.root / "run/client/imex.sock"))

    def call(self, message: Message, descriptor: int | None = None) -> Message:
        if descriptor is None:
            self._sock.sendall(encode(message))
        else:
            descriptors.send(self._sock, encode(message), descriptor)
        decoder = Decoder()
        while True:
            data, received = descriptors.receive(self._sock, 65536)
            assert received is None
            assert data, "the daemon closed the connection"
            for reply in decoder.feed(data):
                return reply

    def open(self, path: Path, flags: int) -> Message:
        descriptor = os.open(path, flags)
        try:
            return self.call({"call": "open"}, descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        self._sock.close()


@pytest.fixture
def raw(rack: Rack) -> Iterator[Raw]:
    connection = Raw(rack.nodes[0])
    yield connection
    connection.close()


def code(reply: Message) -> int:
    assert reply["error"]["name"] == "CUDA_ERROR_NOT_PERMITTED"
    return int(reply["error"]["code"])


def test_calls_without_a_proven_channel_are_refused(raw: Raw, secret: str) -> None:
    calls: list[Message] = [
        {"call": "open"},
        {"call": "open", "channel": 5},
        {"call": "allocate", "gpu": 0, "size": 65536, "channel": 5},
        {"call": "export", "allocation": 1},
        {"call": "import", "handle": secret, "channel": 5},
        {"call": "free", "allocation": 1},
        {"call": "release", "import": 1},
        {"call": "memory"},
    ]
    assert [code(raw.call(call)) for call in calls] == [CudaError.NOT_PERMITTED] * len(calls)


def test_a_descriptor_that_proves_nothing_is_refused(rack: Rack, raw: Raw, tmp_path: Path) -> None:
    own = rack.nodes[0].root / CHANNELS / "channel5"
    foreign = rack.nodes[1].root / CHANNELS / "channel5"
    copy = tmp_path / "channel5"
    copy.touch()
    attempts = [
        (own, os.O_PATH),
        (own, os.O_RDONLY),
        (own, os.O_WRONLY),
        (foreign, os.O_RDWR),
        (copy, os.O_RDWR),
        (own.parent, os.O_RDONLY),
        (Path("/dev/null"), os.O_RDWR),
    ]
    assert [code(raw.open(path, flags)) for path, flags in attempts] == [800] * len(attempts)


def test_a_link_or_a_strange_name_in_the_channel_directory_is_no_channel(rack: Rack, raw: Raw) -> None:
    directory = rack.nodes[0].root / CHANNELS
    outside = rack.nodes[0].root / "outside"
    outside.touch()
    (directory / "channel99").symlink_to(outside)
    (directory / "channel007").touch()
    assert code(raw.open(outside, os.O_RDWR)) == CudaError.NOT_PERMITTED
    assert code(raw.open(directory / "channel007", os.O_RDWR)) == CudaError.NOT_PERMITTED


def test_a_process_opens_one_channel_in_its_life(rack: Rack, raw: Raw) -> None:
    directory = rack.nodes[0].root / CHANNELS
    assert raw.open(directory / "channel5", os.O_RDWR)["channel"] == 5
    assert code(raw.open(directory / "channel7", os.O_RDWR)) == CudaError.NOT_PERMITTED


def test_others_memory_can_be_neither_exported_nor_freed_nor_released(
    rack: Rack, raw: Raw, on: MakeWorkload, secret: str
) -> None:
    """Numbers are counted from one, so all that others on the node have can be tried."""
    neighbour = on(rack.nodes[0], 5)
    neighbour.attach(secret)
    raw.open(rack.nodes[0].root / CHANNELS / "channel5", os.O_RDWR)
    for number in range(1, 100):
        for call in (
            {"call": "export", "allocation": number},
            {"call": "free", "allocation": number},
            {"call": "release", "import": number},
        ):
            assert raw.call(call)["error"]["code"] == CudaError.INVALID_VALUE
    assert neighbour.read(6) == "secret"


def test_an_equal_inode_on_another_device_is_another_file(rack: Rack) -> None:
    directory = rack.nodes[0].root / CHANNELS
    own = list((directory / "channel5").stat())
    assert channels.find(os.stat_result(own), str(directory)) == 5
    own[2] += 1
    assert channels.find(os.stat_result(own), str(directory)) is None


def test_memory_files_are_for_daemons_only(rack: Rack, secret: str) -> None:
    assert rack.fabric.stat().st_mode & 0o077 == 0
    for path in rack.fabric.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
