"""Supervises the processes that run on no node: which must not end, and which are restarted.

If a required process ends (a part of the control plane, the kubelets, the drivers, the proxy), the cluster stops.
imex-controller and the MPI Operator are restarted with back-off, as a Deployment would do. Processes that a fault
killed on purpose are left alone.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from imex_dra.base.errors import Unavailable
from imex_dra.kube.backoff import Backoff
from imex_sandbox.process import Process

PERIOD = 0.5
"""Seconds between two checks."""
RESET_AFTER = 60.0
"""A process that has run for so many seconds starts with the shortest back-off again."""

_BACKOFF = Backoff(1.0, 30.0, jitter=lambda: 1.0)

T = TypeVar("T")


class Restarter:
    """Restarts one process with back-off."""

    def __init__(self, process: Process, clock: Callable[[], float] = time.monotonic) -> None:
        self._process = process
        self._clock = clock
        self._started = clock()
        self._consecutive_exits = 0
        self._restart_at: float | None = None

    def check(self) -> str:
        """Call this periodically from the main thread. Return a message if the process has ended."""
        now = self._clock()
        if self._process.running:
            self._restart_at = None
        elif self._restart_at is None:
            return self._schedule_restart(now)
        elif now >= self._restart_at:
            self._restart_at, self._started = None, now
            self._process.start()
        return ""

    def _schedule_restart(self, now: float) -> str:
        self._consecutive_exits = 1 if now - self._started > RESET_AFTER else self._consecutive_exits + 1
        delay = _BACKOFF.delay(self._consecutive_exits)
        self._restart_at = now + delay
        process = self._process
        return f"{process.name} ended ({process.exit_status}); restarting in {delay:g} s; log: {process.log}"


class Supervisor:
    def __init__(self) -> None:
        self.killed: set[str] = set()
        """Names of processes that were killed on purpose: they stay down until they are started on purpose."""
        self._required: list[Process] = []
        self._restarters: dict[str, Restarter] = {}

    def require(self, *processes: Process) -> None:
        self._required.extend(processes)

    def restart_on_exit(self, name: str, process: Process) -> None:
        self._restarters[name] = Restarter(process)

    def failure(self) -> str:
        """Why the cluster must stop; empty if it need not."""
        for process in self._required:
            if not process.running and process.name not in self.killed:
                ended = f"{process.name} ended unexpectedly ({process.exit_status})"
                return f"{ended}, and the cluster cannot run without it; log: {process.log}"
        return ""

    def restart_ended(self) -> list[str]:
        """Restart what has ended, and return messages about it.

        While a required process is down on purpose the others fail for that reason alone, so they are not
        restarted.
        """
        if any(process.name in self.killed for process in self._required):
            return []
        checks = [restarter.check() for name, restarter in self._restarters.items() if name not in self.killed]
        return [message for message in checks if message]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine. Raise Unavailable as soon as a required process ends."""
        return asyncio.run(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait({task}, timeout=PERIOD))[0]:
            if message := self.failure():
                task.cancel()
                await asyncio.wait({task})
                raise Unavailable(message)
        return task.result()
