"""Virtual time for pure code: an hour of back-off takes a millisecond. Never use it around real I/O."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import looptime

R = TypeVar("R")


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        return runner.run(coroutine)
