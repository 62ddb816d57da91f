"""Waiting for whichever comes first."""

import asyncio


async def first_of(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Returns when one of the events is set, or when the time is over."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
