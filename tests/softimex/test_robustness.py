"""Whoever connects, and whatever it sends or leaves unsent: the daemon lives, answers, and does not grow."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from imex_dra.softimex import descriptors, nodemap
from imex_dra.softimex.frames import LIMIT, Decoder, Message, encode
from imex_dra.softimex.states import LinkState
from tests.softimex.rack import PARTITION, VERSION, Node, Rack, eventually
from tests.softimex.workload import Workload, give_channels

pytestmark = pytest.mark.timeout(300)

Connect = Callable[[], socket.socket]

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
    "strange hello": encode({"hello": {"slot": -1, "instance": "\n", "version": None, "map": 1}}),
    "many frames": encode({}) * 500,
}


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    rack = Rack(2)
    for node in rack.nodes:
        give_channels(node, 5)
    rack.start()
    yield rack
    rack.close()


@pytest.fixture
def node(rack: Rack) -> Node:
    return rack.nodes[0]


def dial(node: Node, door: str) -> socket.socket:
    if door == "client":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(node.root / "run/client/imex.sock"))
        sock.settimeout(60)
        return sock
    port = {"peer": 50000, "command": 50005}[door]
    return socket.create_connection((node.address, port), timeout=60)


def memory_kib(node: Node) -> int:
    return int(Path(f"/proc/{node.pid}/status").read_text().split("VmRSS:")[1].split()[0])


def open_files(node: Node) -> int:
    return len(list(Path(f"/proc/{node.pid}/fd").iterdir()))


def has_let_go(node: Node, before: int) -> bool:
    """No more files than before, give or take a connection of its peer."""
    return open_files(node) <= before + 3


def answers(node: Node) -> bool:
    """A new visitor of the command door is served."""
    with dial(node, "command") as sock:
        sock.sendall(encode({"query": "state"}))
        return sock.recv(100) == encode({"state": "READY"})


def until_closed(sock: socket.socket) -> None:
    """Wait until the daemon closes the connection, whatever it says before; the socket has a time limit."""
    with suppress(ConnectionError):
        while sock.recv(65536):
            continue


DOORS = ["peer", "command", "client"]


def test_garbage_costs_its_sender_the_connection_and_nobody_else(rack: Rack, node: Node) -> None:
    files, memory = open_files(node), memory_kib(node)
    with ExitStack() as stack:
        socks = []
        for door in DOORS:
            for data in [*GARBAGE.values()] * 2:
                socks.append(stack.enter_context(dial(node, door)))
                socks[-1].sendall(data)
        assert answers(node)
        for sock in socks:
            until_closed(sock)
    eventually(lambda: has_let_go(node, files))
    assert memory_kib(node) - memory < 3 * 1024
    rack.until_up()


@pytest.mark.parametrize("door", DOORS)
def test_more_idlers_than_places_do_not_shut_others_out(rack: Rack, node: Node, door: str) -> None:
    files = open_files(node)
    with ExitStack() as stack:
        for _ in range(700):
            stack.enter_context(dial(node, door))
        assert answers(node)
        with dial(node, door) as sock:
            sock.sendall(encode({"hello": hello(rack, 1), "query": "state", "call": "open"}))
            assert sock.recv(1000)
    eventually(lambda: has_let_go(node, files))
    rack.until_up()


def dribble(sock: socket.socket, frame: bytes) -> None:
    for byte in frame:
        sock.sendall(bytes([byte]))
        time.sleep(0.02)


def test_one_byte_at_a_time_is_too_slow(node: Node) -> None:
    with dial(node, "command") as sock:
        frame = encode({"query": "state", "padding": "x" * 1000})
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            dribble(sock, frame)
        assert time.monotonic() - began > 2
    assert answers(node)


@pytest.mark.parametrize("door", ["command", "peer"])
def test_one_who_asks_and_never_reads_is_dropped(rack: Rack, node: Node, door: str) -> None:
    memory = memory_kib(node)
    with dial(node, door) as sock:
        if door == "peer":
            sock.sendall(encode({"hello": hello(rack, 1)}))
        question = encode(
            {"query": "node"} if door == "command" else {"ask": 1, "handle": "", "padding": "x" * 200}
        )
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            sock.sendall(question * 1_000_000)
    assert answers(node)
    assert memory_kib(node) - memory < 4 * 1024


def test_descriptors_that_nobody_asked_for_are_closed(node: Node) -> None:
    files = open_files(node)
    with dial(node, "client") as sock, Path("/dev/null").open("rb") as null:
        for _ in range(20):
            many = [null.fileno()] * 50
            socket.send_fds(sock, [encode({"call": "open"})], many)
            sock.recv(1000)
        eventually(lambda: has_let_go(node, files))
        assert answers(node)


def test_a_second_request_before_the_answer_ends_the_connection(rack: Rack, on: Callable[..., Workload]) -> None:
    """A process that overtakes its own import loses its connection, and nothing stays behind."""
    handle = on(rack.nodes[1], 5).export()
    node = rack.nodes[0]
    with dial(node, "client") as sock:
        channel = os.open(node.root / "dev/nvidia-caps-imex-channels/channel5", os.O_RDWR)
        descriptors.send(sock, encode({"call": "open"}), channel)
        os.close(channel)
        assert b"channel" in sock.recv(1000)
        sock.sendall(encode({"call": "import", "handle": handle}) * 3)
        until_closed(sock)
    assert answers(node)
    eventually(lambda: not (rack.nodes[1].root / "run/persist.dat").exists())


def hello(rack: Rack, slot: int, instance: str = "00" * 8) -> Message:
    """What a daemon of this domain would say; the map's key is no secret."""
    return {"slot": slot, "instance": instance, "version": VERSION, "map": nodemap.key(rack.names)}


@pytest.mark.parametrize(
    "change", [{"version": "570.1"}, {"map": "00" * 32}, {"slot": 0}, {"slot": 2}, {"slot": 65535}]
)
def test_who_does_not_fit_is_not_accepted_and_not_answered(rack: Rack, node: Node, change: Message) -> None:
    with dial(node, "peer") as sock:
        sock.sendall(encode({"hello": {**hello(rack, 1), **change}}) + encode({"ping": 1}))
        received = b""
        while chunk := sock.recv(1000):
            received += chunk
    assert [reply["accepted"] for reply in Decoder().feed(received)] == [False]


@pytest.mark.parametrize("knows_the_instance", [False, True])
def test_an_impostor_can_neither_end_a_peers_memory_nor_ask_for_it(
    rack: Rack, on: Callable[..., Workload], knows_the_instance: bool
) -> None:
    """It comes from another address, claims to be node 1 and asks on its behalf. Any handle tells the instance."""
    exporter, importer = on(rack.nodes[0], 5), on(rack.nodes[1], 5)
    handle = exporter.export(content="hello")
    importer.attach(handle)
    instance = on(rack.nodes[1], 5).export()[16:32] if knows_the_instance else "00" * 8
    question = {"ask": 1, "handle": handle, "channel": 5, "partition": PARTITION}
    with dial(rack.nodes[0], "peer") as sock:
        sock.sendall(encode({"hello": hello(rack, 1, instance)}) + encode(question) + encode({"release": 1}))
        decoder, replies = Decoder(), list[Message]()
        while len(replies) < 2:
            replies += decoder.feed(sock.recv(65536))
    assert replies[0]["accepted"] is True
    assert "file" not in replies[1]
    assert ("its address is" if knows_the_instance else "another instance") in replies[1]["lost"]
    rack.until_link(0, 1, LinkState.CONNECTED)
    assert importer.read(5) == "hello"
    assert (rack.nodes[0].root / "run/persist.dat").exists()
