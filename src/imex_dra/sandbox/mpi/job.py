"""All ranks of a job while they run: their output, their ends, and the signals that the launcher gets."""

import os
import selectors
import signal
import socket
from collections.abc import Mapping, Sequence
from types import FrameType

from imex_dra.sandbox.mpi.layout import Placement
from imex_dra.sandbox.mpi.wire import Wire
from imex_dra.softimex.frames import Message

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_STREAMS = {1: "stdout", 2: "stderr"}


class Verdict:
    """How the job ends: well, or as the first thing that went wrong says."""

    def __init__(self) -> None:
        self.code = 0
        self.why = ""

    def rank_ended(self, placement: Placement, code: int) -> None:
        where = f"rank {placement.rank} on {placement.host.label}"
        if code > 0:
            self._blame(code, f"{where} ended with exit code {code}")
        elif code < 0:
            self._blame(128 - code, f"{where} was ended by {signal.Signals(-code).name}")

    def host_lost(self, placements: Sequence[Placement]) -> None:
        host, ranks = placements[0].host, ", ".join(str(placement.rank) for placement in placements)
        lost = f"{host.name} is lost (ranks {ranks}): see kubectl describe pod {host.label}"
        self._blame(1, lost)

    def told_to_end(self, number: int) -> None:
        self._blame(128 + number, f"mpirun was told to end by {signal.Signals(number).name}")

    def _blame(self, code: int, why: str) -> None:
        if not self.code:
            self.code, self.why = code, why


class Job:
    """`placed` says which connection leads to which ranks."""

    def __init__(self, placed: Mapping[Wire, Sequence[Placement]], *, tag_output: bool) -> None:
        self.verdict = Verdict()
        self._placed = {wire: {placement.rank: placement for placement in ranks} for wire, ranks in placed.items()}
        self._tag_output = tag_output
        self._ending = False
        self._selector = selectors.DefaultSelector()
        self._signals = _signals()
        self._selector.register(self._signals, selectors.EVENT_READ, None)
        for wire in self._placed:
            self._selector.register(wire, selectors.EVENT_READ, wire)

    def run(self) -> Verdict:
        """Until every rank has ended, or the second request to end."""
        while any(self._placed.values()):
            for key, _ in self._selector.select():
                if key.data is None:
                    if self._signalled(self._signals.recv(64)):
                        return self.verdict
                else:
                    self._heard(key.data)
            if self.verdict.code and not self._ending:
                self._end()
        return self.verdict

    def _heard(self, wire: Wire) -> None:
        try:
            messages = wire.arrived()
        except OSError:
            messages = None
        for message in messages or ():
            self._take(wire, message)
        if messages is None:
            self._lost(wire)

    def _take(self, wire: Wire, message: Message) -> None:
        rank = message["rank"]
        if "ended" in message:
            self.verdict.rank_ended(self._placed[wire].pop(rank), message["ended"])
        else:
            self._print(rank, message["stream"], message["text"])

    def _lost(self, wire: Wire) -> None:
        """A host that has no ranks left closes its connection too."""
        self._selector.unregister(wire)
        if ranks := self._placed.pop(wire):
            self.verdict.host_lost(list(ranks.values()))

    def _signalled(self, numbers: bytes) -> bool:
        """True if the end may not be waited for any longer."""
        for number in numbers:
            if number in ENDING:
                if self._ending:
                    return True
                self.verdict.told_to_end(number)
            elif number in FORWARDED:
                self._send({"signal": number})
        return False

    def _end(self) -> None:
        self._ending = True
        self._send({"signal": signal.SIGTERM, "last": True})

    def _send(self, message: Message) -> None:
        for wire in self._placed:
            try:
                wire.send(message)
            except OSError:
                continue  # It will be seen as lost.

    def _print(self, rank: int, stream: int, text: str) -> None:
        tag = f"[1,{rank}]<{_STREAMS[stream]}>:" if self._tag_output else ""
        data = (tag + text).encode(errors="surrogateescape")
        while data:
            data = data[os.write(stream, data) :]


def _signals() -> socket.socket:
    """A socket from which the numbers of signals are read: handlers may run at any instruction, this may not."""
    reading, writing = socket.socketpair()
    for end in (reading, writing):
        end.setblocking(False)
    signal.set_wakeup_fd(writing.detach())
    for number in (*ENDING, *FORWARDED):
        signal.signal(number, _noted)
    return reading


def _noted(number: int, frame: FrameType | None) -> None:
    """The wake-up socket has it."""
