"""An event loop in virtual time: when nothing can run, time jumps to the next timer.

No sockets, no threads, no real clock. What would run in a thread (`asyncio.to_thread`) runs on the loop, at once,
so that the order of everything depends only on the seed.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualSelector(selectors.BaseSelector):
    """There are no files to wait for: a wait lets the time pass."""

    def __init__(self) -> None:
        self.time = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits, and no timer is set")
        self.time += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        raise NotImplementedError("a simulation has no files to wait for")

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class Deadlock(Exception):
    """Nothing will ever happen again."""


_numbers = count()


class NumberedTask(asyncio.Task[Any]):
    """asyncio keeps tasks in sets, and the order of a set must not depend on memory addresses."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = next(_numbers)
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class NumberedFuture(asyncio.Future[Any]):
    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = next(_numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)
        self.set_task_factory(lambda loop, coroutine, **options: NumberedTask(coroutine, loop=loop, **options))
        # Large enough for the rounding of sums of seconds, far too small to matter.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._virtual.time

    def create_future(self) -> asyncio.Future[Any]:
        return NumberedFuture(loop=self)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:
            future.set_exception(error)
        return future

    def _make_self_pipe(self) -> None:
        """Only signals and other threads need it."""

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
