"""Simulated processes that can be paused, as by SIGSTOP, while virtual time goes on."""

import asyncio
import types
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

R = TypeVar("R")

_current: ContextVar["PausableProcess | None"] = ContextVar("process", default=None)


class PausableProcess:
    """Tasks that are started in it, and their child tasks, run only while it is not paused."""

    def __init__(self) -> None:
        self._running = asyncio.Event()
        self._running.set()

    @property
    def paused(self) -> bool:
        return not self._running.is_set()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def start(self, coroutine: Coroutine[Any, Any, R]) -> "asyncio.Task[R]":
        token = _current.set(self)
        try:
            return asyncio.get_running_loop().create_task(coroutine)
        finally:
            _current.reset(token)

    @types.coroutine
    def steps(self, coroutine: Coroutine[Any, Any, R]) -> Generator[Any, Any, R]:
        """Runs the coroutine step by step. A result or a cancellation that arrives during a pause is delivered
        after it.
        """
        step, argument = coroutine.send, None
        while True:
            while self.paused:
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
    """For `loop.set_task_factory`."""
    assert isinstance(coroutine, Coroutine)
    process = _current.get()
    return asyncio.Task(_stepped(process, coroutine) if process else coroutine, loop=loop, **options)


async def _stepped(process: PausableProcess, coroutine: Coroutine[Any, Any, R]) -> R:
    return await process.steps(coroutine)
