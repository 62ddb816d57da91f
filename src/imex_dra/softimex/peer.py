"""The connection that this daemon opens to one peer.

A daemon believes of a peer only what arrives here, on the connection that it opened itself to the peer's
address: its instance, its goodbye, its answers. What others claim when they connect to us changes nothing that
we think of them.
"""

import socket
import time
from typing import Protocol

from imex_dra.softimex import link as links
from imex_dra.softimex.errors import Malformed
from imex_dra.softimex.frames import Message
from imex_dra.softimex.identity import Identity, describe, identify
from imex_dra.softimex.journal import Journal
from imex_dra.softimex.link import Change, Link
from imex_dra.softimex.loop import Loop
from imex_dra.softimex.noderoot import DROP
from imex_dra.softimex.questions import Answered, Questions
from imex_dra.softimex.sockets import begin_connection
from imex_dra.softimex.states import LinkState
from imex_dra.softimex.stream import Security, Stream

PING_SECONDS = 1.5
SILENCE_SECONDS = 4.0
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 3.0
SOONEST_RETRY_SECONDS = 0.1


class Home(Protocol):
    """What a peer needs of the daemon."""

    loop: Loop
    journal: Journal
    identity: Identity
    own_address: str
    port: int
    grace: int

    def address_of(self, slot: int) -> str | None: ...
    def fault_to(self, address: str) -> float: ...
    def security_to(self, slot: int) -> Security | None: ...
    def lost(self, slot: int) -> None: ...
    def reload_keys(self) -> None: ...


class Outgoing(Stream):
    def __init__(self, peer: "Peer", sock: socket.socket) -> None:
        super().__init__(peer.home.loop, sock, peer.home.security_to(peer.slot))
        self._peer = peer

    def opened(self) -> None:
        self.send({"hello": describe(self._peer.home.identity)})

    def received(self, message: Message, descriptor: int | None) -> None:
        self._peer.received(self, message)

    def closed(self, why: str) -> None:
        self._peer.closed(self, why)


class Peer:
    def __init__(self, home: Home, slot: int, name: str) -> None:
        self.home = home
        self.slot = slot
        self.link = Link()
        self.address = ""
        self._name = name
        self._stream: Outgoing | None = None
        self._greeted = False
        self._failures = 0
        self._dialled_at = 0.0
        self._pinged_at = 0.0
        self._questions = Questions()

    @property
    def connected(self) -> bool:
        return self.link.state is LinkState.CONNECTED

    def ask(self, question: Message, answered: Answered) -> None:
        self.tell(self._questions.add(question, answered))
        if not self.connected:
            self._questions.give_up(f"it is not connected ({self.link.state.name})")

    def tell(self, message: Message) -> None:
        if self._stream and self._greeted:
            self._stream.send(message)

    def restart(self) -> None:
        """Resolve anew and connect anew; nothing is lost unless that fails."""
        stream, self._stream = self._stream, None
        if stream:
            stream.close("we connect anew")
        self.dial()

    def wake(self) -> None:
        """The peer was heard from, so it may be worth a try now."""
        if time.monotonic() - self._dialled_at > SOONEST_RETRY_SECONDS:
            self.dial()

    def tick(self, now: float) -> None:
        self._change(links.waited(self.link, now, self.home.grace))
        if self._stream:
            self._watch_over(self._stream, now)
        elif now - self._dialled_at >= self._retry_seconds():
            self.dial()

    def dial(self) -> None:
        if self._stream or self.link.barred:
            return
        self._dialled_at = time.monotonic()
        self._greeted = False
        self.address = self.home.address_of(self.slot) or ""
        try:
            self._connect()
        except OSError as error:
            self._failed(str(error))

    def received(self, stream: Outgoing, message: Message) -> None:
        if not self._greeted:
            self._welcomed(stream, message)
        elif "answer" in message:
            self._questions.answer(message)
        elif "bye" in message:
            self._change(links.left(self.link))
            stream.close("it shuts down")
        elif "reload" in message:
            self.home.reload_keys()

    def closed(self, stream: Outgoing, why: str) -> None:
        if stream is self._stream:
            self._stream = None
            self._failed(why)

    def _connect(self) -> None:
        if not self.address:
            raise OSError("its name has no address")
        if self.home.fault_to(self.address) == DROP:
            raise OSError("the cable is cut")
        sock = begin_connection(self.home.own_address, self.address, self.home.port)
        self._stream = Outgoing(self, sock)
        self._stream.start(connecting=True)

    def _welcomed(self, stream: Outgoing, message: Message) -> None:
        theirs = identify(message.get("welcome"))
        if theirs.slot != self.slot:
            raise Malformed(f"node {theirs.slot} answers there")
        accepted = message.get("accepted") is True
        self._change(links.greeted(self.link, self.home.identity, theirs, accepted))
        if not self.connected:
            stream.close(f"{self.link.state.name}: it runs version {theirs.version}")
            return
        self._greeted = True
        self._failures = 0
        for question in self._questions.unanswered():
            self.tell(question)

    def _watch_over(self, stream: Outgoing, now: float) -> None:
        fault = self.home.fault_to(self.address)
        stream.freeze(fault == DROP)
        stream.delay = max(0.0, fault)
        if stream.overdue(now) or (self._greeted and now - stream.heard_at > SILENCE_SECONDS):
            stream.close(f"it is silent for {now - stream.heard_at:.0f} s")
        elif self._greeted and now - self._pinged_at >= PING_SECONDS:
            self._pinged_at = now
            stream.send({"ping": 1})

    def _retry_seconds(self) -> float:
        return min(FIRST_RETRY_SECONDS * 2.0 ** max(0, self._failures - 1), LAST_RETRY_SECONDS)

    def _failed(self, why: str) -> None:
        self._failures = min(self._failures + 1, 8)
        self.home.journal.verbose(f"{self}: {why}")
        self._change(links.lost(self.link, time.monotonic(), self.home.grace))
        self._questions.give_up(why)

    def _change(self, change: Change) -> None:
        before, self.link = self.link, change.link
        if change.cleanup:
            self.home.lost(self.slot)
        if before.state is not self.link.state:
            self.home.journal.info(f"connection to {self}: {self.link.state.name}")

    def __str__(self) -> str:
        return f"node {self.slot} ({self._name} {self.address})"
