"""A running job: the output and the exit codes of all ranks, and the signals that the launcher receives."""

import os
import selectors
import signal
import socket
from collections.abc import Mapping, Sequence
from types import FrameType

from imex_sandbox.mpi.connection import Connection
from imex_sandbox.mpi.mapping import Placement
from imex_sandbox.softimex.frames import Message

TERMINATING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_STREAMS = {1: "stdout", 2: "stderr"}


class JobResult:
    """Success, or the first failure: later failures are usually consequences of the first."""

    def __init__(self) -> None:
        self.exit_code = 0
        self.reason = ""

    def rank_exited(self, placement: Placement, code: int) -> None:
        rank = f"rank {placement.rank} on {placement.host.label}"
        if code > 0:
            self._fail(code, f"{rank} exited with code {code}")
        elif code < 0:
            self._fail(128 - code, f"{rank} was killed by {signal.Signals(-code).name}")

    def host_lost(self, placements: Sequence[Placement]) -> None:
        host, ranks = placements[0].host, ", ".join(str(placement.rank) for placement in placements)
        self._fail(1, f"lost the connection to {host.name} (ranks {ranks}): run kubectl describe pod {host.label}")

    def signal_received(self, number: int) -> None:
        self._fail(128 + number, f"received {signal.Signals(number).name}")

    def _fail(self, exit_code: int, reason: str) -> None:
        if not self.exit_code:
            self.exit_code, self.reason = exit_code, reason


class Job:
    """`placements` maps each connection to the ranks on its host."""

    def __init__(self, placements: Mapping[Connection, Sequence[Placement]], *, tag_output: bool) -> None:
        self.result = JobResult()
        self._running = {
            connection: {placement.rank: placement for placement in ranks}
            for connection, ranks in placements.items()
        }
        self._tag_output = tag_output
        self._terminating = False
        self._selector = selectors.DefaultSelector()
        self._signals = _signals()
        self._selector.register(self._signals, selectors.EVENT_READ, None)
        for connection in self._running:
            self._selector.register(connection, selectors.EVENT_READ, connection)

    def run(self) -> JobResult:
        """Return when all ranks have ended, or at the second terminating signal."""
        while any(self._running.values()):
            for key, _ in self._selector.select():
                if key.data is None:
                    if self._handle_signals(self._signals.recv(64)):
                        return self.result
                else:
                    self._receive(key.data)
            if self.result.exit_code and not self._terminating:
                self._terminate()
        return self.result

    def _receive(self, connection: Connection) -> None:
        try:
            messages = connection.read()
        except OSError:
            messages = None
        for message in messages or ():
            self._handle(connection, message)
        if messages is None:
            self._closed(connection)

    def _handle(self, connection: Connection, message: Message) -> None:
        rank = message["rank"]
        if "exited" in message:
            self.result.rank_exited(self._running[connection].pop(rank), message["exited"])
        else:
            self._print(rank, message["stream"], message["text"])

    def _closed(self, connection: Connection) -> None:
        """A host also closes its connection after all of its ranks have ended."""
        self._selector.unregister(connection)
        if ranks := self._running.pop(connection):
            self.result.host_lost(list(ranks.values()))

    def _handle_signals(self, numbers: bytes) -> bool:
        """True if the launcher must exit without waiting for the ranks."""
        for number in numbers:
            if number in TERMINATING:
                if self._terminating:
                    return True
                self.result.signal_received(number)
            elif number in FORWARDED:
                self._send({"signal": number})
        return False

    def _terminate(self) -> None:
        self._terminating = True
        self._send({"signal": signal.SIGTERM, "terminate": True})

    def _send(self, message: Message) -> None:
        for connection in self._running:
            try:
                connection.send(message)
            except OSError:
                continue  # The next read reports that the connection is closed.

    def _print(self, rank: int, stream: int, text: str) -> None:
        tag = f"[1,{rank}]<{_STREAMS[stream]}>:" if self._tag_output else ""
        data = (tag + text).encode(errors="surrogateescape")
        while data:
            data = data[os.write(stream, data) :]


def _signals() -> socket.socket:
    """A socket that receives the number of each signal.

    A signal handler could run at any point of the program. This way signals are handled only in the loop of the
    job.
    """
    reading, writing = socket.socketpair()
    for end in (reading, writing):
        end.setblocking(False)
    signal.set_wakeup_fd(writing.detach())
    for number in (*TERMINATING, *FORWARDED):
        signal.signal(number, _ignore)
    return reading


def _ignore(number: int, frame: FrameType | None) -> None:
    """Python writes the number to the wakeup descriptor only for signals that have a handler."""
