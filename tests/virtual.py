"""Virtual time for pure code: an hour of back-off takes a millisecond. Never use it around real I/O."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import looptime

R = TypeVar("R")


def runner() -> asyncio.Runner:
    """Time stands still between two runs: what a state machine does step by step."""
    return asyncio.Runner(loop_factory=looptime.new_event_loop)


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    with runner() as running:
        return running.run(coroutine)
