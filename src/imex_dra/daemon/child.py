"""The nvidia-imex process itself: started, signalled, stopped, and what it said last."""

import asyncio
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import structlog

log = structlog.get_logger()

_LAST_LINES = 5


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
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            return f"{self._command[0]} can't be started: {error.strerror}"
        try:
            await self._listen(self._process)
            code = await self._process.wait()
        finally:
            await self.stop()
        words = "; ".join(self._said)
        return f"nvidia-imex ended with {_verdict(code)}" + (f": {words}" if words else "")

    async def stop(self) -> None:
        """SIGTERM lets it tell its peers; what does not go is killed."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is not None:
                return
            self.signal(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            text = line.decode(errors="replace").rstrip()
            self._said.append(text)
            log.info("nvidia-imex", line=text)


def _verdict(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
