"""The connections between daemons: one outbound to each peer, and those that peers opened to this daemon.

The connectivity table of `nvidia-imex-ctl` shows the outbound connections. On inbound connections the daemon
responds to requests and announces its shutdown. Without TLS, the identity that an inbound connection claims is
not proven, so `_refusal` checks it against the outbound connection before any memory is discussed.
"""

import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from imex_sandbox.softimex.config import Config
from imex_sandbox.softimex.daemonlog import DaemonLog
from imex_sandbox.softimex.errors import Malformed
from imex_sandbox.softimex.exchange import Exchange
from imex_sandbox.softimex.frames import Message, number
from imex_sandbox.softimex.loop import Loop
from imex_sandbox.softimex.nodemap import resolve
from imex_sandbox.softimex.noderoot import DROP, NodeRoot
from imex_sandbox.softimex.peer import PEER_TIMEOUT_SECONDS, Peer
from imex_sandbox.softimex.peerstate import ConnectionState, Identity, mismatch, parse_identity
from imex_sandbox.softimex.sockets import Listener, listen_tcp
from imex_sandbox.softimex.stream import Security, Stream

SPARE_CONNECTIONS = 64
TICK_SECONDS = 0.25


class Encryption(Protocol):
    """A protocol, so that a daemon without TLS does not load `ssl`."""

    def to_peer(self, name: str) -> Security: ...
    def from_peer(self) -> Security: ...
    def reload(self) -> None: ...


class InboundConnection(Stream):
    """A connection from a daemon that claims to be a node of this domain."""

    def __init__(self, mesh: "Mesh", sock: socket.socket, source: str) -> None:
        super().__init__(mesh.loop, sock, mesh.encryption.from_peer() if mesh.encryption else None)
        self.established = False
        self.identity: Identity | None = None
        self.source = source
        self._mesh = mesh
        self.freeze(mesh.network_fault(source) == DROP)

    def on_message(self, message: Message, descriptor: int | None) -> None:
        if self.identity is None:
            self.identity = parse_identity(message.get("hello"))
            self.established = self._mesh.accepts(self.identity)
            self.send({"welcome": self._mesh.identity.message(), "accepted": self.established})
            if self.established:
                self._mesh.peer_connected(self.identity)
        elif not self.established:
            raise Malformed("the handshake was refused")
        elif "ping" in message:
            self.send({"pong": 1})
        elif "request" in message:
            response = self._mesh.respond(self, self.identity, message)
            self.send({**response, "response": number(message, "request", 1, 2**62)})
        elif "release" in message:
            self._mesh.release(self, self.identity, message)

    def on_close(self, reason: str) -> None:
        self._mesh.connection_closed(self, reason)

    def tick(self, now: float) -> None:
        fault = self._mesh.network_fault(self.source)
        self.freeze(fault == DROP)
        self.delay = max(0.0, fault)
        if self.timed_out(now) or (self.identity and now - self.received_at > 2 * PEER_TIMEOUT_SECONDS):
            self.close("no message received in time")


class Mesh:
    def __init__(
        self,
        loop: Loop,
        root: NodeRoot,
        daemon_log: DaemonLog,
        exchange: Exchange,
        identity: Identity,
        config: Config,
        entries: Sequence[str],
        own_address: str,
        encryption: Encryption | None = None,
    ) -> None:
        self.loop, self.daemon_log, self.exchange, self.identity = loop, daemon_log, exchange, identity
        self.own_address, self.encryption = own_address, encryption
        self.port, self.grace = config.server_port, config.imex_node_disconnected_grace_time
        self.on_peer_connected: Callable[[], None] = lambda: None
        self._root = root
        self._network = root.network()
        self._entries = entries
        self._peers = {
            index: Peer(self, index, name) for index, name in enumerate(entries) if index != identity.node_index
        }
        limit = 2 * len(entries) + SPARE_CONNECTIONS
        self._inbound = Listener(loop, lambda sock, source: InboundConnection(self, sock, source), limit)

    def start(self) -> None:
        self._inbound.listen(listen_tcp(self.own_address, self.port))
        for peer in self._peers.values():
            peer.connect()
        self.loop.every(TICK_SECONDS, self._tick)

    def add_inbound(self, sock: socket.socket, source: str) -> None:
        self._inbound.add(sock, source)

    def peer(self, index: int) -> Peer | None:
        return self._peers.get(index)

    def peer_indexes(self) -> Collection[int]:
        return self._peers.keys()

    def connection_states(self) -> Iterator[tuple[int, str, ConnectionState]]:
        """Index, address and connection state of every node, including this one."""
        for index in range(len(self._entries)):
            peer = self._peers.get(index)
            if peer is None:
                yield index, self.own_address, ConnectionState.CONNECTED
            else:
                yield index, peer.address, peer.state.connection

    def inbound_peers(self) -> set[int]:
        """The peers that have a connection to this daemon, and therefore know its instance."""
        return {
            connection.identity.node_index
            for connection in self._inbound
            if connection.established and connection.identity
        }

    def has_unsent_data(self) -> bool:
        return any(connection.has_unsent_data for connection in self._inbound)

    def reconnect(self) -> None:
        for peer in self._peers.values():
            peer.reconnect()

    def broadcast(self, message: Message) -> None:
        for connection in self._inbound:
            if connection.established:
                connection.send(message)

    def close(self) -> None:
        self._inbound.close()

    def accepts(self, theirs: Identity) -> bool:
        peer = self._peers.get(theirs.node_index)
        return peer is not None and not peer.state.disabled and mismatch(self.identity, theirs) is None

    def peer_connected(self, theirs: Identity) -> None:
        self._peers[theirs.node_index].connect_soon()
        self.on_peer_connected()

    def respond(self, connection: InboundConnection, theirs: Identity, request: Message) -> Message:
        refusal = self._refusal(connection, theirs)
        return {"failed": refusal} if refusal else self.exchange.respond(theirs, request)

    def release(self, connection: InboundConnection, theirs: Identity, message: Message) -> None:
        if not self._refusal(connection, theirs):
            self.exchange.importer_released(theirs, message)

    def connection_closed(self, connection: InboundConnection, reason: str) -> None:
        self._inbound.remove(connection)
        self.daemon_log.verbose(f"connection from {connection.source}: {reason}")

    def address_of(self, index: int) -> str | None:
        return resolve(self._entries[index], self._root.hosts())

    def network_fault(self, address: str) -> float:
        return self._network.get(address, 0.0)

    def security_to(self, index: int) -> Security | None:
        return self.encryption.to_peer(self._entries[index]) if self.encryption else None

    def reload_keys(self) -> None:
        if self.encryption:
            self.encryption.reload()

    def _refusal(self, connection: InboundConnection, theirs: Identity) -> str:
        """Why requests on this connection are refused, or an empty string.

        The claimed identity must match the peer that this daemon reached itself. Without encryption, the source
        address is the only evidence for it.
        """
        peer, own = self._peers[theirs.node_index], self.identity.node_index
        if not peer.connected:
            return f"node {own} has no connection to it"
        if peer.state.instance != theirs.instance:
            return f"node {own} is connected to another instance of it"
        if peer.address != connection.source and self.encryption is None:
            return (
                f"the request comes from {connection.source}, but the node's address is {peer.address}:"
                " enable encryption, or disable NAT between the nodes"
            )
        return ""

    def _tick(self) -> None:
        now = time.monotonic()
        self._network = self._root.network()
        self._inbound.tick()
        for peer in self._peers.values():
            peer.tick(now)
