"""The daemon's doors inside one process, for fuzzers: bytes in, and everything must be as before.

A door is knocked at with a visit: chunks of bytes that a stranger sends before it hangs up. Afterwards nobody may
be left inside, nothing may be left allocated, and nothing may have raised an exception that was not expected.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from imex_dra.softimex import config as configuration
from imex_dra.softimex import descriptors
from imex_dra.softimex.clients import ClientService
from imex_dra.softimex.command import CommandService
from imex_dra.softimex.errors import CudaError
from imex_dra.softimex.exchange import Exchange, Grant
from imex_dra.softimex.fabric import Fabric
from imex_dra.softimex.frames import Message, encode
from imex_dra.softimex.identity import Identity
from imex_dra.softimex.journal import Journal
from imex_dra.softimex.link import Link
from imex_dra.softimex.loop import Loop
from imex_dra.softimex.mesh import Mesh
from imex_dra.softimex.noderoot import Hardware, NodeRoot
from imex_dra.softimex.peer import Outgoing, Peer
from imex_dra.softimex.persistence import Persistence
from imex_dra.softimex.states import DaemonState, LinkState
from tests.fuzz.visits import HANDLE

OURS = Identity(0, "00" * 8, "580.1", "map")
THEIRS = Identity(1, "11" * 8, "580.1", "map")
HELLO: Message = {"slot": 1, "instance": THEIRS.instance, "version": "580.1", "map": "map"}
HARDWARE = Hardware("580.1", "p.1", 4, "")
ADDRESS = "127.0.0.1"


class Unexpected(AssertionError):
    """A fault that the daemon would have survived, and that is one nevertheless."""


def _complain(fault: str) -> None:
    raise Unexpected(fault)


class House:
    """All parts of a daemon that is READY and connected to one peer, without the process."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="imex-fuzz-"))
        self.root = NodeRoot(self.directory)
        self.channel = Path(self.root.channels, "channel5")
        self.channel.parent.mkdir(parents=True)
        self.channel.touch()
        self.fabric = self.directory / "fabric"
        self.loop = Loop()
        self.loop.on_fault = _complain
        self.exchange = Exchange(
            OURS,
            lambda: HARDWARE,
            Fabric(str(self.fabric), "ab" * 8, OURS.instance),
            Persistence(self.root.file("persist.dat"), "map"),
        )
        self.exchange.ready = True
        journal = Journal(0)
        config, _ = configuration.parse("", self.root.path)
        entries = (ADDRESS, ADDRESS)
        self.mesh = Mesh(self.loop, self.root, journal, self.exchange, OURS, config, entries, ADDRESS)
        self.exchange.peer = self.mesh.peer
        self.handle = self._export().hex().encode()

    def _export(self) -> bytes:
        """Memory of somebody who stays, for visitors who have a good handle."""
        owner = Process()
        grant = self.exchange.allocate(owner, 0, 4096)
        os.close(grant.descriptor)
        return self.exchange.export(owner, grant.number)

    def connect_peer(self) -> Peer:
        peer = self.mesh.peer(1)
        assert peer
        peer.link = Link(LinkState.CONNECTED, THEIRS.instance)
        peer.address = ADDRESS
        return peer

    def memory_files(self) -> list[Path]:
        """One is the memory of the one who stays."""
        return [path for path in self.fabric.iterdir() if "-" in path.name][1:]

    def close(self) -> None:
        self.exchange.close()
        self.loop.close()
        shutil.rmtree(self.directory)


class Door:
    """One end of a connection is taken in; the visitor has the other."""

    def let_in(self, house: House, sock: socket.socket) -> None:
        raise NotImplementedError

    def greet(self, house: House, visitor: socket.socket) -> None:
        """What an honest visitor would send first."""
        raise NotImplementedError

    def leave(self, house: House) -> None:
        """What the house itself has to put away after a visit."""


class PeerDoor(Door):
    """Somebody connects to us as a peer would."""

    def let_in(self, house: House, sock: socket.socket) -> None:
        house.connect_peer()
        house.mesh.admit(sock, ADDRESS)

    def greet(self, house: House, visitor: socket.socket) -> None:
        visitor.send(encode({"hello": HELLO}))


class OutgoingDoor(Door):
    """We connect to a peer and ask it for memory, and it answers what it likes."""

    def __init__(self) -> None:
        self._owner = Process()

    def let_in(self, house: House, sock: socket.socket) -> None:
        peer = house.connect_peer()
        peer._stream = Outgoing(peer, sock)
        peer._greeted = False
        peer._stream.start()
        grant = house.exchange.allocate(self._owner, 0, 4096)
        os.close(grant.descriptor)
        handle = house.exchange.export(self._owner, grant.number)
        foreign = handle[:6] + (1).to_bytes(2) + bytes.fromhex(THEIRS.instance) + handle[16:]
        house.exchange.attach(self._owner, foreign, _take)

    def greet(self, house: House, visitor: socket.socket) -> None:
        visitor.send(encode({"welcome": HELLO, "accepted": True}))

    def leave(self, house: House) -> None:
        house.exchange.gone(self._owner)


class CommandDoor(Door):
    def let_in(self, house: House, sock: socket.socket) -> None:
        service = CommandService(house.loop, dict, lambda _: 0.0)
        service.enter(DaemonState.READY)
        service.sessions.admit(sock, "")

    def greet(self, house: House, visitor: socket.socket) -> None:
        visitor.send(encode({"query": "watch"}))


class ClientDoor(Door):
    def let_in(self, house: House, sock: socket.socket) -> None:
        house.connect_peer()
        ClientService(house.loop, house.root, house.exchange, 0).clients.admit(sock, "")

    def greet(self, house: House, visitor: socket.socket) -> None:
        channel = os.open(house.channel, os.O_RDWR)
        descriptors.send(visitor, encode({"call": "open"}), channel)
        os.close(channel)


class Process:
    """Somebody who holds memory, without a connection."""

    def __init__(self) -> None:
        self.channel, self.alive = 5, True
        self.allocations: dict[int, str] = {}
        self.imports: set[int] = set()

    def tell_lost(self, number: int, why: str) -> None:
        return


def _take(result: Grant | CudaError) -> None:
    if isinstance(result, Grant):
        os.close(result.descriptor)


DOORS: dict[str, Callable[[], Door]] = {
    "peer": PeerDoor,
    "outgoing": OutgoingDoor,
    "command": CommandDoor,
    "client": ClientDoor,
}


def knock(house: House, name: str, chunks: Sequence[bytes], honest: bool) -> None:
    """One visit, from the first byte to the end."""
    door = DOORS[name]()
    ours, visitor = socket.socketpair()
    visitor.setblocking(False)
    door.let_in(house, ours)
    if honest:
        door.greet(house, visitor)
    for chunk in chunks:
        house.loop.step(0)
        _exchange(visitor, chunk.replace(HANDLE.encode(), house.handle))
    house.loop.step(0)
    visitor.close()
    for _ in range(3):
        house.loop.step(0)
    door.leave(house)
    if house.memory_files() or house.loop._selector.get_map():
        raise Unexpected(f"something was left behind by a visit to the {name} door")


def _exchange(visitor: socket.socket, chunk: bytes) -> None:
    """Send, and read whatever came; the connection may be closed already."""
    try:
        visitor.send(chunk)
        while True:
            data, descriptor = descriptors.receive(visitor, 65536)
            descriptors.close(descriptor)
            if not data:
                return
    except OSError:
        return
