"""Misbehaving clients: the daemon keeps running, keeps answering and does not grow, whatever it receives."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from imex_sandbox.softimex import nodemap
from imex_sandbox.softimex.frames import LIMIT, Decoder, Message, encode, send_with_descriptor
from imex_sandbox.softimex.peerstate import ConnectionState
from tests.sandbox.softimex.rack import PARTITION, VERSION, Node, Rack
from tests.sandbox.softimex.workload import CHANNELS, Workload, create_channels
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)

GARBAGE = {
    "nothing": b"",
    "text": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "oversized": (LIMIT + 1).to_bytes(4) + b"x" * 1000,
    "huge": b"\xff" * 4096,
    "half a length": b"\0\0",
    "half a frame": (1000).to_bytes(4) + b'{"query":',
    "no JSON": (9).to_bytes(4) + b"\x80" * 9,
    "no object": (2).to_bytes(4) + b"[]",
    "empty frame": (0).to_bytes(4),
    "deep": (60000).to_bytes(4) + b"[" * 60000,
    "wrong types": encode({"hello": 1, "query": [], "call": {}}),
    "invalid hello": encode({"hello": {"index": -1, "instance": "\n", "version": None, "map": 1}}),
    "many frames": encode({}) * 500,
}


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    rack = Rack(2)
    for node in rack.nodes:
        create_channels(node, 5)
    rack.start()
    yield rack
    rack.close()


@pytest.fixture
def node(rack: Rack) -> Node:
    return rack.nodes[0]


def connect(node: Node, endpoint: str) -> socket.socket:
    if endpoint == "client":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(node.root / "run/client/imex.sock"))
        sock.settimeout(60)
        return sock
    port = {"peer": 50000, "command": 50005}[endpoint]
    return socket.create_connection((node.address, port), timeout=60)


def memory_kib(node: Node) -> int:
    return int(Path(f"/proc/{node.pid}/status").read_text().split("VmRSS:")[1].split()[0])


def open_files(node: Node) -> int:
    return len(list(Path(f"/proc/{node.pid}/fd").iterdir()))


def has_closed_files(node: Node, before: int) -> bool:
    """No more open files than before, apart from connections with its peer."""
    return open_files(node) <= before + 3


def answers(node: Node) -> bool:
    """Whether a new connection to the command port gets a reply."""
    with connect(node, "command") as sock:
        sock.sendall(encode({"query": "state"}))
        return sock.recv(100) == encode({"state": "READY"})


def until_closed(sock: socket.socket) -> None:
    """Wait until the daemon closes the connection, or until the socket times out."""
    with suppress(ConnectionError):
        while sock.recv(65536):
            continue


ENDPOINTS = ["peer", "command", "client"]


def test_invalid_input_closes_only_the_connection_of_its_sender(rack: Rack, node: Node) -> None:
    files, memory = open_files(node), memory_kib(node)
    with ExitStack() as stack:
        socks = []
        for endpoint in ENDPOINTS:
            for data in [*GARBAGE.values()] * 2:
                socks.append(stack.enter_context(connect(node, endpoint)))
                socks[-1].sendall(data)
        assert answers(node)
        for sock in socks:
            until_closed(sock)
    until(lambda: has_closed_files(node, files))
    assert memory_kib(node) - memory < 3 * 1024
    rack.until_up()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_idle_connections_do_not_lock_out_others(rack: Rack, node: Node, endpoint: str) -> None:
    files = open_files(node)
    with ExitStack() as stack:
        for _ in range(700):
            stack.enter_context(connect(node, endpoint))
        assert answers(node)
        with connect(node, endpoint) as sock:
            sock.sendall(encode({"hello": hello(rack, 1), "query": "state", "call": "open"}))
            assert sock.recv(1000)
    until(lambda: has_closed_files(node, files))
    rack.until_up()


def send_slowly(sock: socket.socket, frame: bytes) -> None:
    for byte in frame:
        sock.sendall(bytes([byte]))
        time.sleep(0.02)


def test_a_client_that_sends_too_slowly_is_disconnected(node: Node) -> None:
    with connect(node, "command") as sock:
        frame = encode({"query": "state", "padding": "x" * 1000})
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            send_slowly(sock, frame)
        assert time.monotonic() - began > 2
    assert answers(node)


@pytest.mark.parametrize("endpoint", ["command", "peer"])
def test_a_client_that_never_reads_is_disconnected(rack: Rack, node: Node, endpoint: str) -> None:
    memory = memory_kib(node)
    with connect(node, endpoint) as sock:
        if endpoint == "peer":
            sock.sendall(encode({"hello": hello(rack, 1)}))
        query = encode(
            {"query": "node"} if endpoint == "command" else {"request": 1, "handle": "", "padding": "x" * 200}
        )
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            sock.sendall(query * 1_000_000)
    assert answers(node)
    assert memory_kib(node) - memory < 4 * 1024


def test_unexpected_descriptors_are_closed(node: Node) -> None:
    files = open_files(node)
    with connect(node, "client") as sock, Path("/dev/null").open("rb") as null:
        for _ in range(20):
            many = [null.fileno()] * 50
            socket.send_fds(sock, [encode({"call": "open"})], many)
            sock.recv(1000)
        until(lambda: has_closed_files(node, files))
        assert answers(node)


def test_a_second_request_during_an_import_closes_the_connection(
    rack: Rack, start_workload: Callable[..., Workload]
) -> None:
    handle = start_workload(rack.nodes[1], 5).export()
    node = rack.nodes[0]
    with connect(node, "client") as sock:
        channel = os.open(node.root / CHANNELS / "channel5", os.O_RDWR)
        send_with_descriptor(sock, encode({"call": "open"}), channel)
        os.close(channel)
        assert b"channel" in sock.recv(1000)
        sock.sendall(encode({"call": "import", "handle": handle}) * 3)
        until_closed(sock)
    assert answers(node)
    until(lambda: not (rack.nodes[1].root / "run/persist.dat").exists())


def hello(rack: Rack, index: int, instance: str = "00" * 8) -> Message:
    """The handshake of a daemon of this domain. The map key is not a secret."""
    return {"index": index, "instance": instance, "version": VERSION, "map": nodemap.map_key(rack.names)}


@pytest.mark.parametrize(
    "change", [{"version": "570.1"}, {"map": "00" * 32}, {"index": 0}, {"index": 2}, {"index": 65535}]
)
def test_a_handshake_that_does_not_match_is_refused_and_further_messages_get_no_reply(
    rack: Rack, node: Node, change: Message
) -> None:
    with connect(node, "peer") as sock:
        sock.sendall(encode({"hello": {**hello(rack, 1), **change}}) + encode({"ping": 1}))
        received = b""
        while chunk := sock.recv(1000):
            received += chunk
    assert [reply["accepted"] for reply in Decoder().feed(received)] == [False]


@pytest.mark.parametrize("knows_the_instance", [False, True])
def test_an_impostor_can_neither_release_nor_import_memory_of_a_peer(
    rack: Rack, start_workload: Callable[..., Workload], knows_the_instance: bool
) -> None:
    """It connects from another address and claims to be node 1. It can read the instance from any handle."""
    exporter, importer = start_workload(rack.nodes[0], 5), start_workload(rack.nodes[1], 5)
    handle = exporter.export(content="hello")
    importer.import_handle(handle)
    instance = start_workload(rack.nodes[1], 5).export()[16:32] if knows_the_instance else "00" * 8
    request = {"request": 1, "handle": handle, "channel": 5, "partition": PARTITION}
    with connect(rack.nodes[0], "peer") as sock:
        sock.sendall(encode({"hello": hello(rack, 1, instance)}) + encode(request) + encode({"release": 1}))
        decoder, replies = Decoder(), list[Message]()
        while len(replies) < 2:
            replies += decoder.feed(sock.recv(65536))
    assert replies[0]["accepted"] is True
    assert "file" not in replies[1]
    assert ("the node's address is" if knows_the_instance else "another instance") in replies[1]["failed"]
    rack.until_connection(0, 1, ConnectionState.CONNECTED)
    assert importer.read(5) == "hello"
    assert (rack.nodes[0].root / "run/persist.dat").exists()
