"""Waiting for a condition, the one way tests do it: poll, and fail with what was waited for."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar, overload

T = TypeVar("T")

PERIOD = 0.02
LIMIT = 60.0


def until(condition: Callable[[], T], *, within: float = LIMIT, what: str = "") -> T:
    """The first true answer; AssertionError with the last answer if there is none in time."""
    deadline = time.monotonic() + within
    while not (answer := condition()):
        assert time.monotonic() < deadline, _failure(condition, what, within, answer)
        time.sleep(PERIOD)
    return answer


@overload
async def until_async(condition: Callable[[], Awaitable[T]], *, within: float = LIMIT, what: str = "") -> T: ...
@overload
async def until_async(condition: Callable[[], T], *, within: float = LIMIT, what: str = "") -> T: ...
async def until_async(condition: Callable[[], T | Awaitable[T]], *, within: float = LIMIT, what: str = "") -> T:
    """The same for an event loop; the condition may be a coroutine function."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while True:
        answer = condition()
        if isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert loop.time() < deadline, _failure(condition, what, within, answer)
        await asyncio.sleep(PERIOD)


def _failure(condition: object, what: str, within: float, answer: object) -> str:
    name = what or getattr(condition, "__qualname__", repr(condition))
    return f"waited {within:g} s for: {name}; last answer: {answer!r}"
