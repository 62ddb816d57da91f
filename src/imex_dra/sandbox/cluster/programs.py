"""One program of one node, kept running: as a task of the crew, or apart, as a process of its own.

Whoever ends without having been told to is started again after a moment, as a kubelet would do. A signal needs a
process: a program that is still a task is ended and started anew apart, and waited for, before it gets one.
"""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog
from structlog.contextvars import bind_contextvars

from imex_dra.base.errors import Rejected

log = structlog.get_logger()

RESTART = 1.0
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
_PATIENCE = 5.0
_SERVES_WITHIN = 60.0
"""Then a signal is sent all the same: perhaps what it needs is what is broken."""


class Work(Protocol):
    """A program, as a coroutine and as a command."""

    name: str

    @property
    def argv(self) -> Sequence[str]: ...

    async def run(self) -> None: ...

    async def serves(self, log: Path) -> None:
        """Returns when a process of it, which writes to this log, does what it is there for."""


class Program:
    def __init__(self, work: Work, node: str, *, log: Path, apart: bool = False) -> None:
        self.name = work.name
        self._work = work
        self._node = node
        self._log = log
        self._apart = apart
        self._process: Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> bool:
        return self._keeper is not None

    @property
    def pid(self) -> int:
        if self._process is None or self._process.returncode is not None:
            raise Rejected(f"{self.name} of node {self._node} is no process of its own right now")
        return self._process.pid

    def start(self) -> None:
        if self._keeper is not None:
            raise Rejected(f"{self.name} of node {self._node} runs already")
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """A task is cancelled, a process gets SIGTERM first."""
        if self._keeper is not None:
            keeper, self._keeper = self._keeper, None
            keeper.cancel()
            await asyncio.wait({keeper})

    async def drop(self) -> None:
        """Without notice, as far as that is possible for a task."""
        with suppress(Rejected):
            self.signal(signal.SIGKILL)
        await self.stop()

    async def kill(self) -> None:
        await self.set_apart()
        await self.drop()

    async def set_apart(self) -> None:
        if not self.wanted:
            raise Rejected(f"{self.name} of node {self._node} does not run")
        if not self._apart:
            await self.stop()
            self._apart = True
            self.start()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._work.serves(self._log), _SERVES_WITHIN)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def _keep(self) -> None:
        bind_contextvars(program=self.name, node=self._node)
        while True:
            try:
                await (self._run_apart() if self._apart else self._work.run())
                log.warning("ended, and is started again")
            except Exception as error:
                log.error("failed, and is started again", exc_info=error)
            await asyncio.sleep(RESTART)

    async def _run_apart(self) -> None:
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *DIES_WITH_US,
                *self._work.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        try:
            code = await self._process.wait()
            log.warning("the process ended", code=code)
        finally:
            await self._end(self._process)

    async def _end(self, process: Process) -> None:
        for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGKILL):
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.send_signal(number)
                if number is not signal.SIGTERM:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(process.wait(), _PATIENCE)
