"""The endpoints of the daemon in one process, for fuzzing.

An input is a sequence of chunks that a client sends before it disconnects. Afterwards no connection and no
memory may be left, and no unexpected exception may have been raised.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from imex_sandbox.softimex import config as configuration
from imex_sandbox.softimex.clientservice import ClientService
from imex_sandbox.softimex.command import CommandService, DaemonState
from imex_sandbox.softimex.daemonlog import DaemonLog
from imex_sandbox.softimex.errors import CudaError
from imex_sandbox.softimex.exchange import Exchange, Grant
from imex_sandbox.softimex.fabric import Fabric
from imex_sandbox.softimex.frames import (
    Message,
    close_descriptor,
    encode,
    receive_with_descriptor,
    send_with_descriptor,
)
from imex_sandbox.softimex.loop import Loop
from imex_sandbox.softimex.mesh import Mesh
from imex_sandbox.softimex.noderoot import Hardware, NodeRoot
from imex_sandbox.softimex.peer import OutboundConnection, Peer
from imex_sandbox.softimex.peerstate import ConnectionState, Identity, PeerState
from imex_sandbox.softimex.rundir import PersistFile
from tests.sandbox.fuzz.inputs import HANDLE, Input

OURS = Identity(0, "00" * 8, "580.1", "map")
THEIRS = Identity(1, "11" * 8, "580.1", "map")
HELLO: Message = THEIRS.message()
HARDWARE = Hardware("580.1", "p.1", 4, "")
ADDRESS = "127.0.0.1"


class Unexpected(AssertionError):
    """An error that the daemon would survive, but that must not happen."""


def _fail(report: str) -> None:
    raise Unexpected(report)


class InProcessDaemon:
    """All parts of a daemon that is READY and connected to one peer, without a process of its own."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="imex-fuzz-"))
        self.root = NodeRoot(self.directory)
        self.channel = Path(self.root.channels, "channel5")
        self.channel.parent.mkdir(parents=True)
        self.channel.touch()
        self.fabric = self.directory / "fabric"
        self.loop = Loop()
        self.loop.on_exception = _fail
        self.exchange = Exchange(
            OURS,
            lambda: HARDWARE,
            Fabric(str(self.fabric), "ab" * 8, OURS.instance),
            PersistFile(self.root.file("persist.dat"), "map"),
        )
        self.exchange.ready = True
        config, _ = configuration.parse("", self.root.path)
        entries = (ADDRESS, ADDRESS)
        self.mesh = Mesh(self.loop, self.root, DaemonLog(0), self.exchange, OURS, config, entries, ADDRESS)
        self.exchange.peer = self.mesh.peer
        self.handle = self._export().hex().encode()

    def _export(self) -> bytes:
        """Export memory that remains, so that inputs can contain a valid handle."""
        owner = FakeOwner()
        grant = self.exchange.allocate(owner, 0, 4096)
        os.close(grant.descriptor)
        return self.exchange.export(owner, grant.number)

    def connect_peer(self) -> Peer:
        peer = self.mesh.peer(1)
        assert peer
        peer.state = PeerState(ConnectionState.CONNECTED, THEIRS.instance)
        peer.address = ADDRESS
        return peer

    def leftover_memory(self) -> list[Path]:
        """The memory files in addition to the one that remains."""
        return [path for path in self.fabric.iterdir() if "-" in path.name][1:]

    def close(self) -> None:
        self.exchange.close()
        self.loop.close()
        shutil.rmtree(self.directory)


class Endpoint:
    """The daemon gets one end of a connection, the fuzzer the other."""

    def connect(self, daemon: InProcessDaemon, sock: socket.socket) -> None:
        raise NotImplementedError

    def handshake(self, client: socket.socket) -> None:
        """Send what a correct client sends first."""
        raise NotImplementedError

    def clean_up(self, daemon: InProcessDaemon) -> None:
        """Remove what the endpoint itself created."""


class PeerEndpoint(Endpoint):
    """A client connects to the server port, as a peer does."""

    def connect(self, daemon: InProcessDaemon, sock: socket.socket) -> None:
        daemon.connect_peer()
        daemon.mesh.add_inbound(sock, ADDRESS)

    def handshake(self, client: socket.socket) -> None:
        client.send(encode({"hello": HELLO}))


class OutgoingEndpoint(Endpoint):
    """The daemon connects to a peer and requests an import; the fuzzer plays the peer."""

    def __init__(self) -> None:
        self._owner = FakeOwner()

    def connect(self, daemon: InProcessDaemon, sock: socket.socket) -> None:
        peer = daemon.connect_peer()
        peer._stream = OutboundConnection(peer, sock)
        peer._handshake_done = False
        peer._stream.start()
        grant = daemon.exchange.allocate(self._owner, 0, 4096)
        os.close(grant.descriptor)
        handle = daemon.exchange.export(self._owner, grant.number)
        of_peer = handle[:6] + (1).to_bytes(2) + bytes.fromhex(THEIRS.instance) + handle[16:]
        daemon.exchange.import_handle(self._owner, of_peer, _close_granted)

    def handshake(self, client: socket.socket) -> None:
        client.send(encode({"welcome": HELLO, "accepted": True}))

    def clean_up(self, daemon: InProcessDaemon) -> None:
        daemon.exchange.owner_gone(self._owner)


class CommandEndpoint(Endpoint):
    def connect(self, daemon: InProcessDaemon, sock: socket.socket) -> None:
        service = CommandService(daemon.loop, dict, lambda _: 0.0)
        service.set_state(DaemonState.READY)
        service.sessions.add(sock, "")

    def handshake(self, client: socket.socket) -> None:
        client.send(encode({"query": "watch"}))


class ClientEndpoint(Endpoint):
    def connect(self, daemon: InProcessDaemon, sock: socket.socket) -> None:
        self._channel = daemon.channel
        daemon.connect_peer()
        ClientService(daemon.loop, daemon.root, daemon.exchange, 0).clients.add(sock, "")

    def handshake(self, client: socket.socket) -> None:
        channel = os.open(self._channel, os.O_RDWR)
        send_with_descriptor(client, encode({"call": "open"}), channel)
        os.close(channel)


class FakeOwner:
    """An owner of memory without a connection."""

    def __init__(self) -> None:
        self.channel, self.alive = 5, True
        self.allocations: dict[int, str] = {}
        self.imports: set[int] = set()

    def notify_lost(self, number: int, reason: str) -> None:
        return


def _close_granted(result: Grant | CudaError) -> None:
    if isinstance(result, Grant):
        os.close(result.descriptor)


ENDPOINTS: dict[str, Callable[[], Endpoint]] = {
    "peer": PeerEndpoint,
    "outgoing": OutgoingEndpoint,
    "command": CommandEndpoint,
    "client": ClientEndpoint,
}


def run_input(daemon: InProcessDaemon, name: str, given: Input) -> None:
    """Run one input on a new connection; raises `Unexpected` if it leaves anything behind."""
    endpoint = ENDPOINTS[name]()
    ours, client = socket.socketpair()
    client.setblocking(False)
    endpoint.connect(daemon, ours)
    if given.handshake:
        endpoint.handshake(client)
    for chunk in given.chunks:
        daemon.loop.step(0)
        _send_and_receive(client, chunk.replace(HANDLE.encode(), daemon.handle))
    daemon.loop.step(0)
    client.close()
    for _ in range(3):
        daemon.loop.step(0)
    endpoint.clean_up(daemon)
    if daemon.leftover_memory() or daemon.loop._selector.get_map():
        raise Unexpected(f"an input to the {name} endpoint left memory or a connection behind")


def _send_and_receive(client: socket.socket, chunk: bytes) -> None:
    """Send a chunk and read all replies; the daemon may have closed the connection."""
    try:
        client.send(chunk)
        while True:
            data, descriptor = receive_with_descriptor(client, 65536)
            close_descriptor(descriptor)
            if not data:
                return
    except OSError:
        return
