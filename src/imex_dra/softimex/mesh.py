"""The daemons' network: a connection to every other node, and the connections of the others to us.

The matrix that the ctl shows is made of the outgoing ones. On the incoming ones we answer, and say goodbye
when we shut down; which node somebody claims to be is believed there only as far as nothing depends on it.
"""

import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from imex_dra.softimex.config import Config
from imex_dra.softimex.errors import Malformed
from imex_dra.softimex.frames import Message, number
from imex_dra.softimex.identity import Identity, describe, identify, mismatch
from imex_dra.softimex.journal import Journal
from imex_dra.softimex.listener import Listener
from imex_dra.softimex.loop import Loop
from imex_dra.softimex.nodemap import resolve
from imex_dra.softimex.noderoot import DROP, NodeRoot
from imex_dra.softimex.peer import SILENCE_SECONDS, Peer
from imex_dra.softimex.sockets import listen_tcp
from imex_dra.softimex.states import LinkState
from imex_dra.softimex.stream import Security, Stream

SPARE_CONNECTIONS = 64
TICK_SECONDS = 0.25


class Memory(Protocol):
    """The side of the daemon that exchanges memory."""

    def asked(self, asker: Identity, question: Message) -> Message: ...
    def released(self, asker: Identity, message: Message) -> None: ...
    def lost(self, slot: int) -> None: ...


class Encryption(Protocol):
    def to_peer(self, name: str) -> Security: ...
    def from_peer(self) -> Security: ...
    def reload(self) -> None: ...


class Incoming(Stream):
    """A connection that somebody opened to us, saying which node it is."""

    def __init__(self, mesh: "Mesh", sock: socket.socket, source: str) -> None:
        super().__init__(mesh.loop, sock, mesh.encryption.from_peer() if mesh.encryption else None)
        self.introduced = False
        self.identity: Identity | None = None
        self.source = source
        self._mesh = mesh
        self.freeze(mesh.fault_to(source) == DROP)

    def received(self, message: Message, descriptor: int | None) -> None:
        if self.identity is None:
            self.identity = identify(message.get("hello"))
            self.introduced = self._mesh.accepts(self.identity)
            self.send({"welcome": describe(self._mesh.identity), "accepted": self.introduced})
            self._mesh.heard_from(self)
        elif not self.introduced:
            raise Malformed("it was refused")
        elif "ping" in message:
            self.send({"pong": 1})
        elif "ask" in message:
            self.send({**self._mesh.answer(self, message), "answer": number(message, "ask", 1, 2**62)})
        elif "release" in message and not self._mesh.objection_to(self):
            self._mesh.memory.released(self.identity, message)

    def closed(self, why: str) -> None:
        self._mesh.dismissed(self, why)

    def tick(self, now: float) -> None:
        fault = self._mesh.fault_to(self.source)
        self.freeze(fault == DROP)
        self.delay = max(0.0, fault)
        if self.overdue(now) or (self.identity and now - self.heard_at > 2 * SILENCE_SECONDS):
            self.close("it is silent")


class Mesh:
    def __init__(
        self,
        loop: Loop,
        root: NodeRoot,
        journal: Journal,
        memory: Memory,
        identity: Identity,
        config: Config,
        entries: Sequence[str],
        own_address: str,
        encryption: Encryption | None = None,
    ) -> None:
        self.loop, self.journal, self.memory, self.identity = loop, journal, memory, identity
        self.own_address, self.encryption = own_address, encryption
        self.port, self.grace = config.server_port, config.imex_node_disconnected_grace_time
        self._root = root
        self._network = root.network()
        self._entries = entries
        self._peers = {slot: Peer(self, slot, name) for slot, name in enumerate(entries) if slot != identity.slot}
        most = 2 * len(entries) + SPARE_CONNECTIONS
        self._incoming = Listener(loop, lambda sock, source: Incoming(self, sock, source), most)
        self.on_heard: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._incoming.listen(listen_tcp(self.own_address, self.port))
        for peer in self._peers.values():
            peer.dial()
        self.loop.every(TICK_SECONDS, self._tick)

    def admit(self, sock: socket.socket, source: str) -> None:
        self._incoming.admit(sock, source)

    def peer(self, slot: int) -> Peer | None:
        return self._peers.get(slot)

    def states(self) -> Iterator[tuple[int, str, LinkState]]:
        """Slot, address and state of the connection to every node, ourselves included."""
        for slot in range(len(self._entries)):
            peer = self._peers.get(slot)
            if peer is None:
                yield slot, self.own_address, LinkState.CONNECTED
            else:
                yield slot, peer.address, peer.link.state

    def heard(self) -> set[int]:
        """The nodes that have a connection to us, so that they know our instance."""
        return {guest.identity.slot for guest in self._incoming if guest.introduced and guest.identity}

    def others(self) -> Collection[int]:
        return self._peers.keys()

    def busy(self) -> bool:
        """Whether something that we said is still on its way out."""
        return any(guest.busy for guest in self._incoming)

    def reconnect(self) -> None:
        for peer in self._peers.values():
            peer.restart()

    def tell_all(self, message: Message) -> None:
        for guest in self._incoming:
            if guest.introduced:
                guest.send(message)

    def close(self) -> None:
        self._incoming.close()

    def accepts(self, theirs: Identity) -> bool:
        peer = self._peers.get(theirs.slot)
        return peer is not None and not peer.link.barred and mismatch(self.identity, theirs) is None

    def heard_from(self, guest: Incoming) -> None:
        if guest.introduced and guest.identity:
            self._peers[guest.identity.slot].wake()
            self.on_heard()

    def objection_to(self, guest: Incoming) -> str:
        """Why we don't talk about memory with it, or nothing.

        We do with nodes that we reach ourselves and that are who they say. Without encryption an address is all
        that we know a node by.
        """
        peer = self._peers.get(guest.identity.slot) if guest.identity else None
        if peer is None or guest.identity is None or not peer.connected:
            return f"node {self.identity.slot} has no connection to it"
        if peer.link.instance != guest.identity.instance:
            return f"node {self.identity.slot} is connected to another instance of it"
        if peer.address != guest.source and self.encryption is None:
            return f"it asks from {guest.source}, but its address is {peer.address}: encrypt, or don't masquerade"
        return ""

    def answer(self, guest: Incoming, question: Message) -> Message:
        why = self.objection_to(guest)
        if guest.identity is None or why:
            return {"lost": why}
        return self.memory.asked(guest.identity, question)

    def dismissed(self, guest: Incoming, why: str) -> None:
        self._incoming.dismissed(guest)
        self.journal.verbose(f"connection from {guest.source}: {why}")

    def address_of(self, slot: int) -> str | None:
        return resolve(self._entries[slot], self._root.hosts())

    def fault_to(self, address: str) -> float:
        return self._network.get(address, 0.0)

    def security_to(self, slot: int) -> Security | None:
        return self.encryption.to_peer(self._entries[slot]) if self.encryption else None

    def lost(self, slot: int) -> None:
        self.memory.lost(slot)

    def reload_keys(self) -> None:
        if self.encryption:
            self.encryption.reload()

    def _tick(self) -> None:
        now = time.monotonic()
        self._network = self._root.network()
        self._incoming.tick()
        for peer in self._peers.values():
            peer.tick(now)
