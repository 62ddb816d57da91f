"""Waiting for whichever comes first, and not for ever."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Returns when one of the events is set, or when the time is over."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def ends_within(seconds: float, work: Coroutine[Any, Any, object] | asyncio.Task[Any]) -> bool:
    """Whether the work came to its end in time; if not, it is given up.

    For cleaning up: in a task that is being cancelled, `asyncio.timeout` of Python 3.11.2, which is Debian 12's,
    ends in CancelledError, and what should come after it never does.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    return bool(done)
