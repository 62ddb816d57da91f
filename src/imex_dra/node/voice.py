"""Of two node programs at once, as during an update, one speaks for the node: card, seats, and the order to end a
daemon. What it learns a moment earlier or later than the other must not make them flap.

The one that came first speaks until it ends, however it ends: the kernel then gives its lock away.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

log = structlog.get_logger()

_ASK_EVERY = 0.2


@asynccontextmanager
async def speaking(lock: Path) -> AsyncIterator[None]:
    """Entered when it is our turn."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        await _turn(descriptor)
        log.info("speaking for the node")
        yield
    finally:
        os.close(descriptor)


async def _turn(descriptor: int) -> None:
    """Asked for again and again, because a wait for a lock can't be cancelled."""
    while True:
        if _taken(descriptor):
            return
        await asyncio.sleep(_ASK_EVERY)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
