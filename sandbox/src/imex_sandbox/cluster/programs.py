"""One program of one node, kept running as an asyncio task or as a process of its own.

A program that ends is restarted after a second, as a kubelet would do. By default programs are tasks of one
process, because 72 Python interpreters are too many for a laptop. A signal needs a process, so a program that is
to get one is first restarted as a process.
"""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog
from structlog.contextvars import bind_contextvars

from imex_dra.base.errors import Rejected

log = structlog.get_logger()

RESTART_DELAY = 1.0
DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
STOPS_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM", "--")
"""For a program that has child processes: it can end them."""
_STOP_TIMEOUT = 5.0
_SERVING_TIMEOUT = 60.0
"""After that the signal is sent anyway: the program may need what another fault has broken."""


class Entrypoint(Protocol):
    """A program as a command."""

    name: str

    @property
    def argv(self) -> Sequence[str]: ...

    async def wait_until_serving(self, log: Path) -> None:
        """Wait for a process of this program, which writes to the log, to do its work."""


class Program:
    """A process, or while nothing needs one of its own a task of this process, if the program can be a `task`."""

    def __init__(
        self, entrypoint: Entrypoint, node: str, *, log: Path, task: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.name = entrypoint.name
        self._entrypoint = entrypoint
        self._node = node
        self._log = log
        self._run_task = task
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        """Whether the program is kept running."""
        return self._task is not None

    @property
    def pid(self) -> int:
        if self._process is None or self._process.returncode is not None:
            raise Rejected(f"{self.name} of node {self._node} has no process of its own")
        return self._process.pid

    def start(self) -> None:
        if self._task is not None:
            raise Rejected(f"{self.name} of node {self._node} is already running")
        self._task = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        """Cancel the task, or send SIGTERM to the process."""
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait({task})

    async def stop_at_once(self) -> None:
        """Send SIGKILL to the process and to its children, as when a container ends; a task can only be
        cancelled.
        """
        with suppress(Rejected, ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self.stop()

    async def kill(self) -> None:
        await self.move_to_process()
        await self.stop_at_once()

    async def move_to_process(self) -> None:
        if not self.started:
            raise Rejected(f"{self.name} of node {self._node} is not running")
        if self._run_task is not None:
            await self.stop()
            self._run_task = None
            self.start()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._entrypoint.wait_until_serving(self._log), _SERVING_TIMEOUT)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def _keep_running(self) -> None:
        bind_contextvars(program=self.name, node=self._node)
        while True:
            try:
                await (self._run_process() if self._run_task is None else self._run_task())
                log.warning("program ended, restarting")
            except Exception as error:
                log.error("program failed, restarting", exc_info=error)
            await asyncio.sleep(RESTART_DELAY)

    async def _run_process(self) -> None:
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *DIES_WITH_PARENT,
                *self._entrypoint.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        try:
            code = await self._process.wait()
            log.warning("process ended", code=code)
        finally:
            await self._terminate(self._process)
            # The children of a process that was killed: in a container, the kernel would end them.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _terminate(self, process: Process) -> None:
        # A process that is stopped (SIGSTOP) takes SIGTERM only after SIGCONT.
        for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGKILL):
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.send_signal(number)
                if number is not signal.SIGTERM:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(process.wait(), _STOP_TIMEOUT)
