"""Processes that can be stopped (SIGSTOP) while time goes on, all in one event loop of virtual time."""

import asyncio
import types
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

R = TypeVar("R")

_here: ContextVar["Process | None"] = ContextVar("process", default=None)


class Process:
    """Whatever tasks are started inside it run only while it does."""

    def __init__(self) -> None:
        self._running = asyncio.Event()
        self._running.set()

    @property
    def stopped(self) -> bool:
        return not self._running.is_set()

    def stop(self) -> None:
        self._running.clear()

    def go_on(self) -> None:
        self._running.set()

    def start(self, coroutine: Coroutine[Any, Any, R]) -> "asyncio.Task[R]":
        token = _here.set(self)
        try:
            return asyncio.get_running_loop().create_task(coroutine)
        finally:
            _here.reset(token)

    @types.coroutine
    def steps(self, coroutine: Coroutine[Any, Any, R]) -> Generator[Any, Any, R]:
        """The coroutine's own, each only while we run; what it waited for, or a cancellation, is kept for then."""
        step, argument = coroutine.send, None
        while True:
            while self.stopped:
                try:
                    yield from self._running.wait().__await__()
                except asyncio.CancelledError as error:
                    step, argument = coroutine.throw, error
            try:
                awaited = step(argument)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                step, argument = coroutine.send, (yield awaited)
            except BaseException as error:
                step, argument = coroutine.throw, error  # type: ignore[assignment]


def make_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, R] | Generator[Any, None, R], **options: Any
) -> "asyncio.Task[R]":
    """A task factory, for `loop.set_task_factory`."""
    assert isinstance(coroutine, Coroutine)
    process = _here.get()
    return asyncio.Task(_stepped(process, coroutine) if process else coroutine, loop=loop, **options)


async def _stepped(process: Process, coroutine: Coroutine[Any, Any, R]) -> R:
    return await process.steps(coroutine)
