"""Waiting for a condition: tests with real I/O never sleep and hope."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], within: float = 45.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)
