"""The ranks of one host, for one launcher: starts them, forwards their output, and terminates them.

Each rank leads its own process group. Ranks are killed when this process dies (parent-death signal), and when the
launcher terminates or is killed: in both cases its socket closes.
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

from imex_sandbox.mpi import rankprograms
from imex_sandbox.mpi.connection import Connection
from imex_sandbox.mpi.rankprograms import ForkedProcess
from imex_sandbox.softimex.frames import Message

GRACE_SECONDS = 2.0
NOT_FOUND = 127
_COLLECTIVES = (
    "all_gather",
    "alltoall",
    "broadcast",
    "gather",
    "hypercube",
    "reduce",
    "reduce_scatter",
    "scatter",
)
_NCCL_TESTS = frozenset(f"{name}_perf" for name in (*_COLLECTIVES, "sendrecv"))
"""Others than `all_reduce_perf`: what they measure is not simulated."""
MAX_LINE = 8 * 1024
"""Longer lines are forwarded in pieces, so that each piece fits in a frame even after JSON escapes it."""


def split_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """The complete lines, and the remainder, which may become a line later."""
    complete, newline, rest = data.rpartition(b"\n")
    lines = [line + b"\n" for line in complete.split(b"\n")] if newline else []
    whole_pieces = len(rest) // MAX_LINE * MAX_LINE
    lines += [rest[:whole_pieces]] if whole_pieces else []
    return [piece for line in lines for piece in _pieces(line)], rest[whole_pieces:]


def _pieces(line: bytes) -> list[bytes]:
    return [line[start : start + MAX_LINE] for start in range(0, len(line), MAX_LINE)]


class LineReader:
    """Reads complete lines from a pipe without blocking, so that lines of different ranks are not mixed."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.ended = False
        self._rest = b""

    def read(self) -> list[bytes]:
        """The lines that are complete now. At the end of the output, also the last line without a newline."""
        return self._lines(self._read())

    def drain(self) -> list[bytes]:
        """Everything that was written so far.

        For a rank that has ended: another process may still hold the pipe open, so waiting for its end could hang.
        """
        lines = []
        while not self.ended and (data := self._read()) is not None:
            lines += self._lines(data)
        return lines + self._take_rest()

    def _lines(self, data: bytes | None) -> list[bytes]:
        self.ended = data == b""
        lines, self._rest = split_lines(self._rest + (data or b""))
        return lines + self._take_rest() if self.ended else lines

    def _read(self) -> bytes | None:
        """None if there is no data yet."""
        try:
            return os.read(self.descriptor, 65536)
        except BlockingIOError:
            return None

    def _take_rest(self) -> list[bytes]:
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class Rank:
    def __init__(self, number: int, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self.number = number
        invocation = rankprograms.find(argv)
        self._process = ForkedProcess(invocation, environment) if invocation else _start(argv, environment)
        pipes = {1: self._process.stdout, 2: self._process.stderr}
        self.outputs = {
            LineReader(pipe if isinstance(pipe, int) else pipe.fileno()): stream
            for stream, pipe in pipes.items()
            if pipe
        }
        self.descriptor = os.pidfd_open(self._process.pid)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def reap(self) -> int:
        """The exit code of a rank that has ended, negative for a signal. Kills the rest of its process group."""
        code = self._process.wait()
        self.signal(signal.SIGKILL)
        os.close(self.descriptor)
        return code


def _start(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        process_group=0,
    )


class Ranks:
    def __init__(self, launcher: Connection) -> None:
        self._launcher = launcher
        self._ranks: dict[int, Rank] = {}
        self._selector = selectors.DefaultSelector()
        self._kill_at = float("inf")

    def run(self) -> None:
        """Return when all ranks have ended and the launcher is informed, or when the launcher is gone."""
        try:
            if request := self._launcher.receive():
                self._start(request)
                self._wait()
        except OSError:
            return  # The launcher is gone.
        finally:
            for rank in self._ranks.values():
                rank.signal(signal.SIGKILL)

    def _start(self, request: Message) -> None:
        shared = {**os.environ, **request["environment"]}
        try:
            _change_directory(request["directories"])
            argv = _resolve(request["argv"], shared.get("PATH", os.defpath))
        except FileNotFoundError as error:
            self._reject(request["ranks"], f"mpirun: {os.uname().nodename}: {error}\n")
            return
        for number, variables in request["ranks"]:
            self._add(Rank(number, argv, {**shared, **variables}))

    def _reject(self, ranks: list[tuple[int, object]], reason: str) -> None:
        for number, _ in ranks:
            self._send_output(number, 2, reason)
            self._launcher.send({"rank": number, "exited": NOT_FOUND})

    def _add(self, rank: Rank) -> None:
        self._ranks[rank.number] = rank
        self._selector.register(rank.descriptor, selectors.EVENT_READ, rank)
        for output in rank.outputs:
            self._selector.register(output.descriptor, selectors.EVENT_READ, (rank, output))

    def _wait(self) -> None:
        self._selector.register(self._launcher, selectors.EVENT_READ)
        while self._ranks:
            self._kill_after_grace_period()
            for key, _ in self._selector.select(self._time_left()):
                match key.data:
                    case Rank() as rank:
                        self._ended(rank)
                    # An event for the output of a rank can follow the event for its end in the same batch.
                    case Rank() as rank, LineReader() as output if rank.number in self._ranks:
                        self._forward(rank, output)
                    case None if not self._handle(self._launcher.read()):
                        return

    def _handle(self, requests: list[Message] | None) -> bool:
        """False if the launcher is gone."""
        for request in requests or ():
            for rank in self._ranks.values():
                rank.signal(request["signal"])
            if request.get("terminate"):
                self._kill_at = time.monotonic() + GRACE_SECONDS
        return requests is not None

    def _kill_after_grace_period(self) -> None:
        if time.monotonic() >= self._kill_at:
            self._kill_at = float("inf")
            for rank in self._ranks.values():
                rank.signal(signal.SIGKILL)

    def _time_left(self) -> float | None:
        return None if self._kill_at == float("inf") else max(0.0, self._kill_at - time.monotonic())

    def _forward(self, rank: Rank, output: LineReader) -> None:
        for line in output.read():
            self._send_output(rank.number, rank.outputs[output], line.decode(errors="surrogateescape"))
        if output.ended:
            self._selector.unregister(output.descriptor)

    def _ended(self, rank: Rank) -> None:
        self._selector.unregister(rank.descriptor)
        code = rank.reap()
        # The output must be sent before the exit code: the launcher may exit when it has all exit codes.
        for output, stream in rank.outputs.items():
            if not output.ended:
                self._selector.unregister(output.descriptor)
                for line in output.drain():
                    self._send_output(rank.number, stream, line.decode(errors="surrogateescape"))
        del self._ranks[rank.number]
        self._launcher.send({"rank": rank.number, "exited": code})

    def _send_output(self, rank: int, stream: int, text: str) -> None:
        self._launcher.send({"rank": rank, "stream": stream, "text": text})


def _change_directory(directories: Sequence[str]) -> None:
    """To the first directory that exists."""
    directory = next(filter(os.path.isdir, directories), None)
    if directory is None:
        raise FileNotFoundError(f"the working directory {directories[0]} does not exist in this container")
    os.chdir(directory)


def _resolve(argv: Sequence[str], path: str) -> list[str]:
    """Simulated containers have no image. A program with a path that only an image has is searched by its name."""
    name = Path(argv[0]).name
    program = shutil.which(argv[0], path=path) or shutil.which(name, path=path)
    if program is None:
        raise FileNotFoundError(f"{argv[0]} is not on the PATH of this container ({path}): {_advice(name)}")
    return [program, *argv[1:]]


def _advice(name: str) -> str:
    """The rule is for the launcher: stand-ins replace commands of containers, not programs of ranks."""
    known = name in _NCCL_TESTS
    cause = "of nccl-tests only all_reduce_perf has a stand-in" if known else "images are not pulled"
    rule = f'{{command: "*{name}*", argv: [mpirun, {"all_reduce_perf" if known else "hostname"}]}}'
    return f"{cause}; add a rule for the launcher to the file of `imex up --stand-ins`, such as {rule}"
