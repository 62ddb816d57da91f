"""Workers that take keys from a work queue and reconcile them.

A failure affects only its own key. What happens to the key depends on the error:

- `Retryable`, and any error that is not an `ImexError`: it is retried with back-off.
- `Terminal`: another attempt fails the same way, so there is none until an object changes and its event adds the
  key again, or until the resync period ends.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic

import structlog

from imex_dra.api.metrics import Outcome
from imex_dra.base.errors import (
    Conflict,
    ImexError,
    NamespaceTerminating,
    NotFound,
    Terminal,
    TooManyRequests,
)
from imex_dra.kube.queue import K, ShutDown, WorkQueue

log = structlog.get_logger()

Reconcile = Callable[[K], Awaitable[float | None]]
"""Reconciles one object. Returns the seconds after which to reconcile it again, or None."""

Measure = Callable[[float, Outcome], None]
"""Gets the duration and the result of each reconcile."""

RESYNC = 120.0
"""Seconds until a key is reconciled again after a terminal error.

Most terminal errors end with an event that adds the key: after NotFound the deletion of the object, after
Invalid a change of its spec. Some do not, because what has to change is not watched: RBAC, an admission policy,
a CRD. And an API server that has just started answers 403 until it has loaded the RBAC rules.
"""


class Controller(Generic[K]):
    def __init__(
        self,
        name: str,
        queue: WorkQueue[K],
        reconcile: Reconcile[K],
        *,
        workers: int = 1,
        resync: float = RESYNC,
        measure: Measure = lambda seconds, result: None,
    ) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._workers = workers
        self._resync = resync
        self._measure = measure
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
            start = asyncio.get_running_loop().time()
            try:
                result = await self._handle(key)
                self._measure(asyncio.get_running_loop().time() - start, result)
            finally:
                self._queue.done(key)
            # A reconcile that does no I/O never yields; the reflectors must run between two of them.
            await asyncio.sleep(0)

    async def _handle(self, key: K) -> Outcome:
        try:
            again = await self._reconcile(key)
        except Terminal as error:
            self._give_up(key, error)
            return Outcome.TERMINAL
        except Exception as error:
            self._retry(key, error)
            return Outcome.RETRY
        self._queue.forget(key)
        if again is not None:
            self._queue.add_after(key, again)
        return Outcome.OK

    def _give_up(self, key: K, error: Terminal) -> None:
        # A change that arrived during this attempt is not lost: the queue hands the key out again after `done`.
        self._queue.forget(key)
        self._queue.add_after(key, self._resync)
        report = self._log.bind(key=str(key), error=str(error), resync_in=self._resync)
        match error:
            case NotFound() | NamespaceTerminating():
                # An object, or everything in a namespace, was deleted meanwhile: its event follows.
                report.info("reconcile met a deletion, waiting for a change")
            case _:
                report.error("reconcile failed, waiting for a change")

    def _retry(self, key: K, error: Exception) -> None:
        retry_after = error.retry_after if isinstance(error, TooManyRequests) else 0.0
        delay = self._queue.retry(key, at_least=retry_after)
        report = self._log.bind(key=str(key), error=str(error), retry_in=round(delay, 2))
        match error:
            case Conflict():
                report.debug("reconcile used an outdated object, retrying")
            case ImexError():
                report.warning("reconcile failed, retrying")
            case _:
                report.error("unexpected error in reconcile, retrying", exc_info=error)
