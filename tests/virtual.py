"""Virtual time for pure code: an hour of back-off takes a millisecond. Never use it with real I/O."""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import looptime

from imex_dra.base.clock import Clock

R = TypeVar("R")


class LoopClock(Clock):
    """Its wall-clock time follows the virtual time of the event loop."""

    EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.EPOCH + timedelta(seconds=self.monotonic())


def runner() -> asyncio.Runner:
    """For state machines: time does not advance between two runs."""
    return asyncio.Runner(loop_factory=looptime.new_event_loop)


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    with runner() as running:
        return running.run(coroutine)
