"""The nvidia-imex process: starting, signaling and stopping it, and its last output.

`run` returns when the process has ended, not when its output has: a child process may keep the pipe open for
longer. Its output is forwarded to our log, but a few lines a minute only: nvidia-imex reports every connection
attempt, and our own lines would be lost among them.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

import structlog

from imex_dra.base.waiting import wait_or_cancel

log = structlog.get_logger()

_KEPT_LINES = 5
_MAX_LINE = 500
"""Characters per line in the reported problem; the message to `imex node` has a size limit."""
_LINES_PER_MINUTE = 10
"""How many lines of output are logged at level info; the others are logged at level debug."""
_DRAIN_TIMEOUT = 0.5
"""Seconds to read output that was written just before the exit."""


class LineBudget:
    """Decides at which level a line of output is logged: the first few of each minute at info."""

    def __init__(self, limit: int = _LINES_PER_MINUTE, period: float = 60.0) -> None:
        self._limit, self._period = limit, period
        self._began = -period
        self._lines = 0

    def spend(self, now: float) -> bool:
        """Whether the line is one of the first few."""
        if now - self._began >= self._period:
            self._began, self._lines = now, 0
        self._lines += 1
        return self._lines <= self._limit

    def take_omitted(self, now: float) -> int:
        """How many lines of a minute that has ended were over the limit; counted once."""
        if now - self._began < self._period:
            return 0
        omitted, self._lines = max(0, self._lines - self._limit), 0
        return omitted


class ImexProcess:
    def __init__(self, command: Sequence[str], *, stop_timeout: float = 5.0) -> None:
        self._command = command
        self._stop_timeout = stop_timeout
        self._process: asyncio.subprocess.Process | None = None
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._budget = LineBudget()

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> str:
        """Starts the process and waits for its end; returns how it ended, as a sentence."""
        self._last_lines.clear()
        ends = os.pipe()
        read_end, write_end = os.fdopen(ends[0], "rb", 0), os.fdopen(ends[1], "wb", 0)
        reader = asyncio.create_task(self._read_output(read_end))
        try:
            with write_end:
                self._process = await self._start(write_end)
            code = await self._process.wait()
            await asyncio.wait({reader}, timeout=_DRAIN_TIMEOUT)
        except OSError as error:
            return f"{self._command[0]} cannot be started: {error.strerror}"
        finally:
            await self.stop()
            reader.cancel()
            await asyncio.wait({reader})
            read_end.close()
        output = "; ".join(self._last_lines)
        return f"nvidia-imex ended with {_exit_status(code)}" + (f": {output}" if output else "")

    async def _start(self, output: BinaryIO) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=asyncio.subprocess.STDOUT
        )

    async def stop(self) -> None:
        """SIGTERM lets nvidia-imex notify its peers; SIGKILL follows if it does not end in time."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is not None:
                return
            self.signal(number)
            await wait_or_cancel(self._stop_timeout, self._process.wait())

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _read_output(self, pipe: BinaryIO) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        try:
            while line := await _read_line(reader):
                self._log(line.decode(errors="replace").rstrip())
        finally:
            transport.close()

    def _log(self, line: str) -> None:
        self._last_lines.append(line[:_MAX_LINE])
        now = asyncio.get_running_loop().time()
        if omitted := self._budget.take_omitted(now):
            log.info("more lines of nvidia-imex are logged at level debug", lines=omitted)
        write = log.info if self._budget.spend(now) else log.debug
        write("nvidia-imex", line=line)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """Empty at the end of the output. Lines that are too long are dropped: a full pipe would block nvidia-imex."""
    while True:
        with suppress(ValueError):
            return await reader.readline()


def _exit_status(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
