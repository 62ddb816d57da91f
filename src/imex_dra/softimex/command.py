"""The command service: what `nvidia-imex-ctl` asks a daemon.

    {"query": "state"}   {"state": "READY"}
    {"query": "node"}    {"slot": 0, "state": …, "version": …, "connections": {"1": {"host": …, "status": …}}}
    {"query": "watch"}   {"state": …}, now and after every change

It only ever tells, so anybody may ask; a connection that asks nothing is closed after a while.
"""

import socket
from collections.abc import Callable

from imex_dra.softimex.errors import Malformed
from imex_dra.softimex.frames import Message
from imex_dra.softimex.listener import Listener
from imex_dra.softimex.loop import Loop
from imex_dra.softimex.noderoot import DROP
from imex_dra.softimex.states import DaemonState
from imex_dra.softimex.stream import Stream

MOST_SESSIONS = 128
IDLE_SECONDS = 10.0
TICK_SECONDS = 0.5


class Session(Stream):
    def __init__(self, service: "CommandService", sock: socket.socket, source: str) -> None:
        super().__init__(service.loop, sock)
        self.introduced = False
        self._service = service
        self._source = source
        self.freeze(service.fault_to(source) == DROP)

    def received(self, message: Message, descriptor: int | None) -> None:
        query = message.get("query")
        if query == "node":
            self.send(self._service.describe())
        elif query in ("state", "watch"):
            self.introduced = self.introduced or query == "watch"
            self.send({"state": self._service.state.name})
        else:
            raise Malformed("a query that is none of state, node, watch")

    def closed(self, why: str) -> None:
        self._service.sessions.dismissed(self)

    def tick(self, now: float) -> None:
        self.freeze(self._service.fault_to(self._source) == DROP)
        if self.overdue(now) or (not self.introduced and now - self.heard_at > IDLE_SECONDS):
            self.close("it asks nothing")


class CommandService:
    def __init__(self, loop: Loop, describe_node: Callable[[], Message], fault_to: Callable[[str], float]) -> None:
        self.loop = loop
        self.state = DaemonState.INITIALIZING
        self.fault_to = fault_to
        self._describe_node = describe_node
        self.sessions = Listener(loop, lambda sock, source: Session(self, sock, source), MOST_SESSIONS)

    def start(self, listening: list[socket.socket]) -> None:
        for sock in listening:
            self.sessions.listen(sock)
        self.loop.every(TICK_SECONDS, self.sessions.tick)

    def describe(self) -> Message:
        return {**self._describe_node(), "state": self.state.name}

    def enter(self, state: DaemonState) -> None:
        """Change the daemon's state, and tell those who watch it."""
        self.state = state
        for session in self.sessions:
            if session.introduced:
                session.send({"state": state.name})
