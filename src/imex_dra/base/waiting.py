"""Waiting for events and tasks, with a time limit."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def wait_any(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Returns when at least one event is set, or after `timeout` seconds."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def wait_or_cancel(seconds: float, work: Coroutine[Any, Any, object] | asyncio.Task[Any]) -> bool:
    """Whether the work finished in time; otherwise it is cancelled. An exception of the work is not raised.

    Use this instead of `asyncio.timeout` in cleanup code. In a task that is being cancelled, `asyncio.timeout` of
    Python 3.11.2 (Debian 12) raises CancelledError instead of TimeoutError, which skips the rest of the cleanup.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    return bool(done)
