"""An event loop in virtual time: when nothing can run, time jumps to the next timer.

No sockets, no threads, no real clock. What would run in a thread (`asyncio.to_thread`) runs on the loop, at once,
so that the order of everything depends only on the seed.

A step can belong to a program (`owner`), which may hold it back: a program that hangs, or was killed.
"""

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from itertools import count
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Owner(Protocol):
    def admits(self, step: asyncio.Handle) -> bool:
        """Whether the step may run now. If not, the owner keeps it."""


owner: ContextVar[Owner | None] = ContextVar("owner", default=None)


class VirtualSelector(selectors.BaseSelector):
    """There are no files to wait for."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        raise NotImplementedError("a simulation has no files to wait for")

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class Deadlock(Exception):
    """Nothing will ever happen again."""


class Livelock(Exception):
    """Programs work without a pause, and hardly any time passes."""


_MOST_STEPS = 100_000
"""In a virtual minute. A busy cluster has a few thousand."""


class NumberedTask(asyncio.Task[Any]):
    """asyncio keeps tasks in sets, and the order of a set must not depend on memory addresses."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


def report_failure(task: "asyncio.Task[Any]") -> None:
    """Done callback of a task that nothing awaits: asyncio would report its error only when it is collected."""
    if not task.cancelled() and (error := task.exception()):
        message = f"{getattr(task.get_coro(), '__qualname__', 'a task')} failed"
        task.get_loop().call_exception_handler({"message": message, "exception": error})


class VirtualLoop(asyncio.SelectorEventLoop):
    _ready: Any

    def __init__(self) -> None:
        self._now = 0.0
        self._minute = (0.0, 0)
        """When the current minute began, and after how many steps."""
        self.steps = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """With a number, so that timers for the same time run in the order in which they were set."""
        self._numbers = count()
        """Of tasks and timers. It starts with the loop: a seed runs in the same way after another one."""
        super().__init__(VirtualSelector())
        self.set_task_factory(
            lambda loop, coroutine, **options: NumberedTask(coroutine, next(self._numbers), loop=loop, **options)
        )
        # Large enough for the rounding of sums of seconds, far too small to matter.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        # Time must pass: a program that waits for what rounding has left of a period would wait for ever.
        delay = max(delay, self._clock_resolution) if delay > 0 else delay
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when its time comes."""

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:
            future.set_exception(error)
        return future

    def _run_once(self) -> None:
        """As asyncio does it, without files, and with a clock that does not wait."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise Deadlock("every task waits, and no timer is set")
            self._now = max(self._now, timers[0][0])
        if self._now - self._minute[0] > 60.0:
            self._minute = (self._now, self.steps)
        elif self.steps - self._minute[1] > _MOST_STEPS:
            raise Livelock(f"{_MOST_STEPS:,} steps in less than a minute, such as {list(ready)[:3]}")
        # Never early, as asyncio may be by the resolution of its clock: time does not pass while steps are ready,
        # so a program that waits for the rest would do so for ever.
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            step = ready.popleft()
            if step._cancelled:
                continue
            program = step._context.get(owner)
            if program is None or program.admits(step):
                self.steps += 1
                step._run()

    def resume(self, steps: list[asyncio.Handle]) -> None:
        """Runs steps that their owner has held back."""
        self._ready.extend(steps)

    def _make_self_pipe(self) -> None:
        """Only signals and other threads need it."""

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
