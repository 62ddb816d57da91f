"""Runs a script: injects each fault at its time, and undoes it when its `for` is over or at a stop."""

import heapq
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from imex_dra.base.errors import ImexError
from imex_sandbox.faults.kinds import AnyFault, parse_duration
from imex_sandbox.faults.store import ActiveFault


class StopEvent(Protocol):
    """A `threading.Event` that a signal handler sets: a signal ends a wait, but never interrupts an action."""

    def wait(self, timeout: float) -> bool: ...


class FaultInjector(Protocol):
    def inject(self, fault: AnyFault) -> ActiveFault | None: ...

    def undo(self, number: int) -> ActiveFault: ...


class _Stopped(Exception):
    pass


class ScriptRunner:
    """Calls `on_injected` and `on_undone` after each change."""

    def __init__(
        self,
        injector: FaultInjector,
        stop: StopEvent,
        *,
        on_injected: Callable[[AnyFault, ActiveFault | None], None],
        on_undone: Callable[[ActiveFault], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._injector = injector
        self._stop = stop
        self._on_injected = on_injected
        self._on_undone = on_undone
        self._now = now
        self._due: list[tuple[float, int]] = []
        """A heap of times and of the faults to undo at that time."""

    def run(self, steps: Sequence[AnyFault]) -> bool:
        """Return False if it was stopped before the end. Faults with a `for` are undone in any case."""
        try:
            began = self._now()
            for step in steps:
                self._wait_until(began + parse_duration(step.after))
                began = self._now()
                self._inject(step)
            while self._due:
                self._wait_until(self._due[0][0])
        except _Stopped:
            return False
        finally:
            self._undo_all()
        return True

    def _inject(self, step: AnyFault) -> None:
        injected = self._injector.inject(step)
        self._on_injected(step, injected)
        if injected is not None and step.seconds is not None:
            heapq.heappush(self._due, (self._now() + step.seconds, injected.id))

    def _wait_until(self, moment: float) -> None:
        """Undo the faults that are due until then."""
        while self._due and self._due[0][0] <= moment:
            self._sleep_until(self._due[0][0])
            self._undo_next()
        self._sleep_until(moment)

    def _undo_next(self) -> None:
        _, number = heapq.heappop(self._due)
        self._on_undone(self._injector.undo(number))

    def _undo_all(self) -> None:
        # A fault that cannot be undone must not prevent the others from being undone.
        failed: list[ImexError] = []
        while self._due:
            try:
                self._undo_next()
            except ImexError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _sleep_until(self, moment: float) -> None:
        if self._stop.wait(max(0.0, moment - self._now())):
            raise _Stopped
