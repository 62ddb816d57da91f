"""The nvidia-imex process itself: started, signalled, stopped, and what it said last.

Its end is the end of the process, not of its output: whatever it started may hold the pipe open for longer.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

import structlog

from imex_dra.base.waiting import ends_within

log = structlog.get_logger()

_LAST_LINES = 5
_LONGEST = 500
"""Characters of a line that are passed on; more would fill the message to the node's program."""
_LAST_WORDS = 0.5
"""Seconds for what it said before its end, and we have not read yet."""


class Child:
    def __init__(self, command: Sequence[str], *, patience: float = 5.0) -> None:
        self._command = command
        self._patience = patience
        self._process: asyncio.subprocess.Process | None = None
        self._said: deque[str] = deque(maxlen=_LAST_LINES)

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> str:
        """Starts it and waits for its end; returns how it ended, in words."""
        self._said.clear()
        ends = os.pipe()
        reading, writing = os.fdopen(ends[0], "rb", 0), os.fdopen(ends[1], "wb", 0)
        listening = asyncio.create_task(self._listen(reading))
        try:
            with writing:
                self._process = await self._start(writing)
            code = await self._process.wait()
            await asyncio.wait({listening}, timeout=_LAST_WORDS)
        except OSError as error:
            return f"{self._command[0]} can't be started: {error.strerror}"
        finally:
            await self.stop()
            listening.cancel()
            await asyncio.wait({listening})
            reading.close()
        words = "; ".join(self._said)
        return f"nvidia-imex ended with {_verdict(code)}" + (f": {words}" if words else "")

    async def _start(self, output: BinaryIO) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=asyncio.subprocess.STDOUT
        )

    async def stop(self) -> None:
        """SIGTERM lets it tell its peers; what does not go is killed."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is not None:
                return
            self.signal(number)
            await ends_within(self._patience, self._process.wait())

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _listen(self, pipe: BinaryIO) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        try:
            while line := await _line(reader):
                text = line.decode(errors="replace").rstrip()
                self._said.append(text[:_LONGEST])
                log.info("nvidia-imex", line=text)
        finally:
            transport.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Nothing at the end. What is too long for a line is left out: nobody may fill the pipe and hang."""
    while True:
        with suppress(ValueError):
            return await reader.readline()


def _verdict(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
