"""What runs on no node: what must not end, what is started again if it does, and what was killed on purpose."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from imex_dra.base.errors import Unavailable
from imex_dra.sandbox.cluster.keeper import Keeper
from imex_dra.sandbox.process import Process

LOOK = 0.5
"""Seconds from one look to the next."""

T = TypeVar("T")


class Supervisor:
    def __init__(self) -> None:
        self.killed: set[str] = set()
        """Programs that stay down until somebody starts them: no accident."""
        self._vital: list[Process] = []
        self._kept: dict[str, Keeper] = {}

    def need(self, *processes: Process) -> None:
        self._vital.extend(processes)

    def keep(self, name: str, process: Process) -> None:
        self._kept[name] = Keeper(process)

    def failure(self) -> str:
        """Why the cluster can't go on, in words; empty while it can."""
        for process in self._vital:
            if not process.running and process.name not in self.killed:
                how = f"{process.name} ended unexpectedly ({process.verdict})"
                return f"{how}, and without it the cluster can't go on; see {process.log}"
        return ""

    def revive(self) -> list[str]:
        """Starts again what ended, and tells of it; not while something is down on purpose that they all need."""
        if any(process.name in self.killed for process in self._vital):
            return []
        looks = [keeper.look() for name, keeper in self._kept.items() if name not in self.killed]
        return [words for words in looks if words]

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises Unavailable at once, if the cluster can't go on: whatever is waited for does not come."""
        return asyncio.run(self._unless_it_fails(work))

    async def _unless_it_fails(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait({task}, timeout=LOOK))[0]:
            if words := self.failure():
                task.cancel()
                await asyncio.wait({task})
                raise Unavailable(words)
        return task.result()
