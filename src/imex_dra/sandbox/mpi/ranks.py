"""The ranks of one host, for one launcher: started, heard, signalled, and ended with it.

A rank leads a process group of its own, dies with us (parent-death signal), and is ended when the launcher ends
or is gone: the socket closes whatever happened to it.
"""

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from imex_dra.sandbox.mpi.lines import LineReader
from imex_dra.sandbox.mpi.wire import Wire
from imex_dra.softimex.frames import Message

GRACE_SECONDS = 2.0
NOT_FOUND = 127


class Rank:
    def __init__(self, number: int, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self.number = number
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            process_group=0,
        )
        pipes = {1: self._process.stdout, 2: self._process.stderr}
        self.outputs = {LineReader(pipe.fileno()): stream for stream, pipe in pipes.items() if pipe}
        self.descriptor = os.pidfd_open(self._process.pid)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def end(self) -> int:
        """Of a rank that has ended: its code (negative: the signal). What it left in its group goes too."""
        code = self._process.wait()
        self.signal(signal.SIGKILL)
        os.close(self.descriptor)
        return code


class Ranks:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._ranks: dict[int, Rank] = {}
        self._selector = selectors.DefaultSelector()
        self._kill_at = float("inf")

    def run(self) -> None:
        """Until all ranks have ended and the launcher knows, or the launcher is gone."""
        try:
            order = self._wire.receive()
            if order:
                self._start(order)
                self._follow()
        except OSError:
            return  # The launcher is gone.
        finally:
            for rank in self._ranks.values():
                rank.signal(signal.SIGKILL)

    def _start(self, order: Message) -> None:
        shared = {**os.environ, **order["environment"]}
        try:
            argv = _found(order["argv"], shared.get("PATH", os.defpath), order["directories"])
        except FileNotFoundError as error:
            self._refuse(order["ranks"], f"mpirun: {os.uname().nodename}: {error}\n")
            return
        for number, own in order["ranks"]:
            self._add(Rank(number, argv, {**shared, **own}))

    def _refuse(self, ranks: list[tuple[int, object]], why: str) -> None:
        for number, _ in ranks:
            self._say(number, 2, why)
            self._wire.send({"rank": number, "ended": NOT_FOUND})

    def _add(self, rank: Rank) -> None:
        self._ranks[rank.number] = rank
        self._selector.register(rank.descriptor, selectors.EVENT_READ, rank)
        for output in rank.outputs:
            self._selector.register(output.descriptor, selectors.EVENT_READ, (rank, output))

    def _follow(self) -> None:
        self._selector.register(self._wire, selectors.EVENT_READ)
        while self._ranks:
            self._end_in_time()
            for key, _ in self._selector.select(self._time_left()):
                match key.data:
                    case Rank() as rank:
                        self._ended(rank)
                    case Rank() as rank, LineReader() as output if rank.number in self._ranks:
                        self._forward(rank, output)
                    case None if not self._obey(self._wire.arrived()):
                        return

    def _obey(self, orders: list[Message] | None) -> bool:
        for order in orders or ():
            for rank in self._ranks.values():
                rank.signal(order["signal"])
            if order.get("last"):
                self._kill_at = time.monotonic() + GRACE_SECONDS
        return orders is not None

    def _end_in_time(self) -> None:
        if time.monotonic() >= self._kill_at:
            self._kill_at = float("inf")
            for rank in self._ranks.values():
                rank.signal(signal.SIGKILL)

    def _time_left(self) -> float | None:
        return None if self._kill_at == float("inf") else max(0.0, self._kill_at - time.monotonic())

    def _forward(self, rank: Rank, output: LineReader) -> None:
        for line in output.read():
            self._say(rank.number, rank.outputs[output], line.decode(errors="surrogateescape"))
        if output.ended:
            self._selector.unregister(output.descriptor)

    def _ended(self, rank: Rank) -> None:
        self._selector.unregister(rank.descriptor)
        code = rank.end()
        for output, stream in rank.outputs.items():
            if not output.ended:
                self._selector.unregister(output.descriptor)
                for line in output.drain():
                    self._say(rank.number, stream, line.decode(errors="surrogateescape"))
        del self._ranks[rank.number]
        self._wire.send({"rank": rank.number, "ended": code})

    def _say(self, rank: int, stream: int, text: str) -> None:
        self._wire.send({"rank": rank, "stream": stream, "text": text})


def _found(argv: Sequence[str], path: str, directories: Sequence[str]) -> list[str]:
    """Goes to the first of the directories that exists, and finds the program from there.

    There are no images here: a program that an image has in a place of its own is looked for by its name.
    """
    directory = next(filter(os.path.isdir, directories), None)
    if directory is None:
        raise FileNotFoundError(f"there is no directory {directories[0]} here")
    os.chdir(directory)
    program = shutil.which(argv[0], path=path) or shutil.which(Path(argv[0]).name, path=path)
    if program is None:
        raise FileNotFoundError(f"{argv[0]} is not on the PATH here ({path})")
    return [program, *argv[1:]]
