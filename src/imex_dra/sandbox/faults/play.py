"""Plays a script: begins each step at its time, undoes what has a `for` when that is over, or at a stop."""

import heapq
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from imex_dra.base.errors import ImexError
from imex_dra.sandbox.faults.kinds import AnyFault, seconds
from imex_dra.sandbox.faults.record import Standing


class Stop(Protocol):
    """A `threading.Event`, say, that a signal handler sets; so no signal ends an action half-way."""

    def wait(self, timeout: float) -> bool: ...


class Injects(Protocol):
    def begin(self, fault: AnyFault) -> Standing | None: ...

    def undo(self, number: int) -> Standing: ...


class Stopped(Exception):
    """Somebody had enough of it."""


class Player:
    """`begun` and `undone` are told when it is so."""

    def __init__(
        self,
        injector: Injects,
        stop: Stop,
        *,
        begun: Callable[[AnyFault, Standing | None], None],
        undone: Callable[[Standing], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._injector = injector
        self._stop = stop
        self._begun = begun
        self._undone = undone
        self._now = now
        self._due: list[tuple[float, int]] = []
        """When to undo which."""

    def play(self, steps: Sequence[AnyFault]) -> bool:
        """False if it was stopped before the end. What has a `for` is undone in any case."""
        try:
            begun = self._now()
            for step in steps:
                self._mend_until(begun + seconds(step.after))
                begun = self._now()
                self._begin(step)
            while self._due:
                self._mend_until(self._due[0][0])
        except Stopped:
            return False
        finally:
            self._undo_all()
        return True

    def _begin(self, step: AnyFault) -> None:
        standing = self._injector.begin(step)
        self._begun(step, standing)
        if standing is not None and step.seconds is not None:
            heapq.heappush(self._due, (self._now() + step.seconds, standing.id))

    def _mend_until(self, moment: float) -> None:
        """Returns at that moment; undoes what is due until then."""
        while self._due and self._due[0][0] <= moment:
            self._sleep_until(self._due[0][0])
            self._undo_next()
        self._sleep_until(moment)

    def _undo_next(self) -> None:
        _, number = heapq.heappop(self._due)
        self._undone(self._injector.undo(number))

    def _undo_all(self) -> None:
        """One that can't be undone keeps no other from it."""
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
            raise Stopped
