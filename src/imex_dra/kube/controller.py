"""Workers that take keys from a queue and reconcile them, one failure never touching another key."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic

import structlog

from imex_dra.base.errors import Conflict, ImexError, Terminal, TooManyRequests
from imex_dra.kube.queue import K, ShutDown, WorkQueue

log = structlog.get_logger()

Reconcile = Callable[[K], Awaitable[float | None]]
"""Brings one object to where it should be; returns the seconds after which to look again, if at all."""


class Controller(Generic[K]):
    def __init__(self, name: str, queue: WorkQueue[K], reconcile: Reconcile[K], *, workers: int = 1) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._workers = workers
        self._log = log.bind(controller=name)

    async def run(self) -> None:
        """Until the queue is closed."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except ShutDown:
                return
            try:
                await self._handle(key)
            finally:
                self._queue.done(key)
            await asyncio.sleep(0)  # a reconcile that never waits must not starve the watches

    async def _handle(self, key: K) -> None:
        try:
            again = await self._reconcile(key)
        except Exception as error:
            self._failed(key, error)
            return
        self._queue.forget(key)
        if again is not None:
            self._queue.add_after(key, again)

    def _failed(self, key: K, error: Exception) -> None:
        patience = error.retry_after if isinstance(error, TooManyRequests) else 0.0
        delay = self._queue.retry(key, at_least=patience)
        report = self._log.bind(key=str(key), error=str(error), retry_in=round(delay, 2))
        match error:
            case Conflict():
                report.debug("decided on an old version; deciding again")
            case Terminal():
                report.error("reconciling failed and will fail again until something changes")
            case ImexError():
                report.warning("reconciling failed")
            case _:
                report.error("reconciling failed unexpectedly", exc_info=error)
