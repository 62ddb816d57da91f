"""A program that may end: it is started again, as its Deployment would do it, and each time it is told.

One that goes on ending is started less and less often; one that has run for a while is forgiven.
"""

import time
from collections.abc import Callable

from imex_dra.kube.backoff import Backoff
from imex_dra.sandbox.process import Process

PAUSES = Backoff(1.0, 30.0, jitter=lambda: 1.0)
FORGIVEN_AFTER = 60.0


class Keeper:
    def __init__(self, process: Process, clock: Callable[[], float] = time.monotonic) -> None:
        self._process = process
        self._clock = clock
        self._began = clock()
        self._ends = 0
        """In a row."""
        self._due: float | None = None
        """When it is to be started again."""

    def look(self) -> str:
        """Every now and then, from the main thread. What there is to tell, if anything."""
        now = self._clock()
        if self._process.running:
            self._due = None
        elif self._due is None:
            return self._postpone(now)
        elif now >= self._due:
            self._due, self._began = None, now
            self._process.start()
        return ""

    def _postpone(self, now: float) -> str:
        self._ends = 1 if now - self._began > FORGIVEN_AFTER else self._ends + 1
        pause = PAUSES.delay(self._ends)
        self._due = now + pause
        process = self._process
        return f"{process.name} ended ({process.verdict}) and is started again in {pause:g} s; see {process.log}"
