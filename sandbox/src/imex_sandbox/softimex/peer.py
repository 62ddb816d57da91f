"""The connection that this daemon opens to one peer.

A daemon trusts only what arrives on the connection that it opened itself to the peer's address: the peer's
instance, its shutdown, its responses. Inbound connections never change the state of a peer.
"""

import socket
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from imex_sandbox.softimex import peerstate
from imex_sandbox.softimex.errors import Malformed
from imex_sandbox.softimex.frames import Message, number
from imex_sandbox.softimex.noderoot import DROP
from imex_sandbox.softimex.peerstate import ConnectionState, PeerState, Transition, parse_identity
from imex_sandbox.softimex.sockets import start_connect
from imex_sandbox.softimex.stream import Stream

if TYPE_CHECKING:
    from imex_sandbox.softimex.mesh import Mesh

PING_SECONDS = 1.5
PEER_TIMEOUT_SECONDS = 4.0
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 3.0
MIN_RETRY_SECONDS = 0.1

OnResponse = Callable[[Message], None]


class PendingRequests:
    """Requests without a response. Each gets exactly one, even if only that the peer is unreachable."""

    def __init__(self) -> None:
        self._last = 0
        self._pending: dict[int, tuple[Message, OnResponse]] = {}

    def add(self, request: Message, on_response: OnResponse) -> Message:
        """The message to send: the request with its number."""
        self._last += 1
        numbered = {**request, "request": self._last}
        self._pending[self._last] = (numbered, on_response)
        return numbered

    def messages(self) -> Iterable[Message]:
        return [request for request, _ in self._pending.values()]

    def complete(self, response: Message) -> None:
        _, on_response = self._pending.pop(number(response, "response", 1, 2**62), (None, None))
        if on_response:
            on_response(response)

    def fail(self, reason: str) -> None:
        pending, self._pending = self._pending, {}
        for _, on_response in pending.values():
            on_response({"failed": reason})


class OutboundConnection(Stream):
    def __init__(self, peer: "Peer", sock: socket.socket) -> None:
        super().__init__(peer.mesh.loop, sock, peer.mesh.security_to(peer.index))
        self._peer = peer

    def on_open(self) -> None:
        self.send({"hello": self._peer.mesh.identity.message()})

    def on_message(self, message: Message, descriptor: int | None) -> None:
        self._peer.on_message(self, message)

    def on_close(self, reason: str) -> None:
        self._peer.on_close(self, reason)


class Peer:
    def __init__(self, mesh: "Mesh", index: int, name: str) -> None:
        self.mesh = mesh
        self.index = index
        self.state = PeerState()
        self.address = ""
        self._name = name
        self._stream: OutboundConnection | None = None
        self._handshake_done = False
        self._failures = 0
        self._attempted_at = 0.0
        self._pinged_at = 0.0
        self._requests = PendingRequests()

    @property
    def connected(self) -> bool:
        return self.state.connection is ConnectionState.CONNECTED

    def request(self, request: Message, on_response: OnResponse) -> None:
        self.send(self._requests.add(request, on_response))
        if not self.connected:
            self._requests.fail(f"it is not connected ({self.state.connection.name})")

    def send(self, message: Message) -> None:
        if self._stream and self._handshake_done:
            self._stream.send(message)

    def reconnect(self) -> None:
        """Resolve the name and connect again. If that succeeds, no import is lost."""
        # Detached first, so that closing it does not count as a lost connection.
        stream, self._stream = self._stream, None
        if stream:
            stream.close("reconnecting")
        self.connect()

    def connect_soon(self) -> None:
        """Connect without waiting for the next retry, because the peer has just connected to us."""
        if time.monotonic() - self._attempted_at > MIN_RETRY_SECONDS:
            self.connect()

    def tick(self, now: float) -> None:
        self._apply(peerstate.time_passed(self.state, now, self.mesh.grace))
        if self._stream:
            self._check(self._stream, now)
        elif now - self._attempted_at >= self._retry_seconds():
            self.connect()

    def connect(self) -> None:
        if self._stream or self.state.disabled:
            return
        self._attempted_at = time.monotonic()
        self._handshake_done = False
        self.address = self.mesh.address_of(self.index) or ""
        try:
            self._start_connect()
        except OSError as error:
            self._fail(str(error))

    def on_message(self, stream: OutboundConnection, message: Message) -> None:
        if not self._handshake_done:
            self._complete_handshake(stream, message)
        elif "response" in message:
            self._requests.complete(message)
        elif "shutdown" in message:
            self._apply(peerstate.peer_shut_down(self.state))
            stream.close("the peer is shutting down")
        elif "reload" in message:
            self.mesh.reload_keys()

    def on_close(self, stream: OutboundConnection, reason: str) -> None:
        if stream is self._stream:
            self._stream = None
            self._fail(reason)

    def _start_connect(self) -> None:
        if not self.address:
            raise OSError("its name does not resolve to an address")
        if self.mesh.network_fault(self.address) == DROP:
            raise OSError("the network to it is blocked")
        sock = start_connect(self.mesh.own_address, self.address, self.mesh.port)
        self._stream = OutboundConnection(self, sock)
        self._stream.start(connecting=True)

    def _complete_handshake(self, stream: OutboundConnection, message: Message) -> None:
        theirs = parse_identity(message.get("welcome"))
        if theirs.node_index != self.index:
            raise Malformed(f"node {theirs.node_index} answered at this address")
        accepted = message.get("accepted") is True
        self._apply(peerstate.handshake_completed(self.state, self.mesh.identity, theirs, accepted))
        if not self.connected:
            stream.close(f"{self.state.connection.name}: the peer runs version {theirs.version}")
            return
        self._handshake_done = True
        self._failures = 0
        for request in self._requests.messages():
            self.send(request)

    def _check(self, stream: OutboundConnection, now: float) -> None:
        fault = self.mesh.network_fault(self.address)
        stream.freeze(fault == DROP)
        stream.delay = max(0.0, fault)
        silent = now - stream.received_at
        if stream.timed_out(now) or (self._handshake_done and silent > PEER_TIMEOUT_SECONDS):
            stream.close(f"no message received for {silent:.0f} s")
        elif self._handshake_done and now - self._pinged_at >= PING_SECONDS:
            self._pinged_at = now
            stream.send({"ping": 1})

    def _retry_seconds(self) -> float:
        return min(FIRST_RETRY_SECONDS * 2.0 ** max(0, self._failures - 1), LAST_RETRY_SECONDS)

    def _fail(self, reason: str) -> None:
        self._failures = min(self._failures + 1, 8)
        self.mesh.daemon_log.verbose(f"{self}: {reason}")
        self._apply(peerstate.connection_lost(self.state, time.monotonic(), self.mesh.grace))
        self._requests.fail(reason)

    def _apply(self, transition: Transition) -> None:
        before, self.state = self.state, transition.state
        if transition.cleanup:
            self.mesh.exchange.peer_lost(self.index)
        if before.connection is not self.state.connection:
            self.mesh.daemon_log.info(f"connection to {self}: {self.state.connection.name}")

    def __str__(self) -> str:
        return f"node {self.index} ({self._name} {self.address})"
