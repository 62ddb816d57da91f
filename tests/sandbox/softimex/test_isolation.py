"""Processes that must not get memory: the daemons refuse them, also if they bypass the library."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imex_sandbox.softimex.clientservice import find_channel
from imex_sandbox.softimex.errors import CudaError
from imex_sandbox.softimex.frames import Decoder, Message, encode, receive_with_descriptor, send_with_descriptor
from tests.sandbox.softimex.rack import Node, Rack
from tests.sandbox.softimex.workload import CHANNELS, Workload, create_channels

pytestmark = pytest.mark.timeout(300)

StartWorkload = Callable[[Node, int | Path], Workload]


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    """Three nodes of one IMEX domain; the third is in another partition."""
    rack = Rack(3)
    rack.nodes[2].set_hardware(partition="7b968a6d-c8aa-45e1-9e07-e1e51be99c31.2")
    for node in rack.nodes:
        create_channels(node, 5, 7)
    rack.start()
    yield rack
    rack.close()


@pytest.fixture
def secret(rack: Rack, start_workload: StartWorkload) -> str:
    """A handle of memory that was exported on channel 5 of the first node."""
    return start_workload(rack.nodes[0], 5).export(content="secret")


def refusal(workload: Workload, *call: Any) -> CudaError:
    with pytest.raises(CudaError) as error:
        workload.call(*call)
    assert error.value.reason
    return error.value


def test_a_process_with_the_same_channel_reads_the_memory(
    rack: Rack, start_workload: StartWorkload, secret: str
) -> None:
    importer = start_workload(rack.nodes[1], 5)
    importer.import_handle(secret)
    assert importer.read(6) == "secret"


def test_a_process_with_another_channel_is_refused(rack: Rack, start_workload: StartWorkload, secret: str) -> None:
    for node in rack.nodes[:2]:
        error = refusal(start_workload(node, 7), "import_handle", secret)
        assert (error.code, "channel 7" in error.reason) == (CudaError.NOT_PERMITTED, True)


def test_a_process_in_another_partition_is_refused(rack: Rack, start_workload: StartWorkload, secret: str) -> None:
    error = refusal(start_workload(rack.nodes[2], 5), "import_handle", secret)
    assert (error.code, "partition" in error.reason) == (CudaError.NOT_SUPPORTED, True)


def test_a_process_in_another_domain_is_refused(rack: Rack, start_workload: StartWorkload, secret: str) -> None:
    """The other domain shares the fabric directory."""
    other = Rack(1)
    own_fabric, other.fabric = other.fabric, rack.fabric
    try:
        create_channels(other.nodes[0], 5)
        other.start()
        error = refusal(start_workload(other.nodes[0], 5), "import_handle", secret)
        assert error.code == CudaError.INVALID_HANDLE
        redirected = bytearray.fromhex(secret)
        redirected[6:8] = (1).to_bytes(2)
        assert (
            refusal(start_workload(other.nodes[0], 5), "import_handle", redirected.hex()).code
            == CudaError.INVALID_HANDLE
        )
    finally:
        other.fabric = own_fabric
        other.close()


@pytest.mark.parametrize("position", [0, 4, 7, 8, 16, 23, 31, 32, 48, 63])
def test_a_forged_handle_is_refused(rack: Rack, start_workload: StartWorkload, secret: str, position: int) -> None:
    forged = bytearray.fromhex(secret)
    forged[position] ^= 1
    assert (
        refusal(start_workload(rack.nodes[1], 5), "import_handle", forged.hex()).code == CudaError.INVALID_HANDLE
    )


def test_invalid_handles_are_refused(rack: Rack, start_workload: StartWorkload) -> None:
    importer = start_workload(rack.nodes[1], 5)
    for handle in ("", "00" * 64, "ff" * 63, "ff" * 65):
        assert refusal(importer, "import_handle", handle).code == CudaError.INVALID_HANDLE


def test_a_handle_of_freed_memory_is_refused(rack: Rack, start_workload: StartWorkload) -> None:
    exporter, importer = start_workload(rack.nodes[0], 5), start_workload(rack.nodes[1], 5)
    handle = exporter.export()
    exporter.call("free")
    assert refusal(importer, "import_handle", handle).code == CudaError.INVALID_HANDLE
    exporter.export()
    assert refusal(importer, "import_handle", handle).code == CudaError.INVALID_HANDLE


def test_a_process_without_a_channel_is_refused(rack: Rack, start_workload: StartWorkload) -> None:
    assert (
        refusal(start_workload(rack.nodes[0], Path("/run/imex/channel")), "number").code == CudaError.NOT_PERMITTED
    )


class RawClient:
    """A connection to the daemon that bypasses the library and sends arbitrary requests."""

    def __init__(self, node: Node) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(60)
        self._sock.connect(str(node.root / "run/client/imex.sock"))

    def call(self, message: Message, descriptor: int | None = None) -> Message:
        if descriptor is None:
            self._sock.sendall(encode(message))
        else:
            send_with_descriptor(self._sock, encode(message), descriptor)
        decoder = Decoder()
        while True:
            data, received = receive_with_descriptor(self._sock, 65536)
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
def raw(rack: Rack) -> Iterator[RawClient]:
    client = RawClient(rack.nodes[0])
    yield client
    client.close()


def code(reply: Message) -> int:
    assert reply["error"]["name"] == "CUDA_ERROR_NOT_PERMITTED"
    return int(reply["error"]["code"])


def test_calls_before_a_channel_is_opened_are_refused(raw: RawClient, secret: str) -> None:
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


def test_descriptors_that_do_not_prove_a_channel_are_refused(rack: Rack, raw: RawClient, tmp_path: Path) -> None:
    own = rack.nodes[0].root / CHANNELS / "channel5"
    other_node = rack.nodes[1].root / CHANNELS / "channel5"
    copy = tmp_path / "channel5"
    copy.touch()
    attempts = [
        (own, os.O_PATH),
        (own, os.O_RDONLY),
        (own, os.O_WRONLY),
        (other_node, os.O_RDWR),
        (copy, os.O_RDWR),
        (own.parent, os.O_RDONLY),
        (Path("/dev/null"), os.O_RDWR),
    ]
    assert [code(raw.open(path, flags)) for path, flags in attempts] == [800] * len(attempts)


def test_a_symlink_or_an_invalid_name_in_the_channel_directory_is_not_a_channel(
    rack: Rack, raw: RawClient
) -> None:
    directory = rack.nodes[0].root / CHANNELS
    outside = rack.nodes[0].root / "outside"
    outside.touch()
    (directory / "channel99").symlink_to(outside)
    (directory / "channel007").touch()
    assert code(raw.open(outside, os.O_RDWR)) == CudaError.NOT_PERMITTED
    assert code(raw.open(directory / "channel007", os.O_RDWR)) == CudaError.NOT_PERMITTED


def test_a_process_cannot_open_a_second_channel(rack: Rack, raw: RawClient) -> None:
    directory = rack.nodes[0].root / CHANNELS
    assert raw.open(directory / "channel5", os.O_RDWR)["channel"] == 5
    assert code(raw.open(directory / "channel7", os.O_RDWR)) == CudaError.NOT_PERMITTED


def test_a_process_cannot_export_free_or_release_memory_of_another_process(
    rack: Rack, raw: RawClient, start_workload: StartWorkload, secret: str
) -> None:
    """Allocations and imports are numbered from one, so the process can try all numbers in use."""
    other = start_workload(rack.nodes[0], 5)
    other.import_handle(secret)
    raw.open(rack.nodes[0].root / CHANNELS / "channel5", os.O_RDWR)
    for number in range(1, 100):
        for call in (
            {"call": "export", "allocation": number},
            {"call": "free", "allocation": number},
            {"call": "release", "import": number},
        ):
            assert raw.call(call)["error"]["code"] == CudaError.INVALID_VALUE
    assert other.read(6) == "secret"


def test_a_file_with_the_same_inode_on_another_device_is_not_the_channel(rack: Rack) -> None:
    directory = rack.nodes[0].root / CHANNELS
    own = list((directory / "channel5").stat())
    assert find_channel(os.stat_result(own), str(directory)) == 5
    own[2] += 1
    assert find_channel(os.stat_result(own), str(directory)) is None


def test_only_the_daemons_user_can_access_memory_files(rack: Rack, secret: str) -> None:
    assert rack.fabric.stat().st_mode & 0o077 == 0
    for path in rack.fabric.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
