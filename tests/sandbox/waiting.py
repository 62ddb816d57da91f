"""Waiting for what real programs do: for a condition, with a deadline, never for a time."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], within: float = 60) -> bool:
    deadline = time.monotonic() + within
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return met
