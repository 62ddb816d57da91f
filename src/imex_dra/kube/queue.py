"""Keys that wait for work: each at most once, never in two hands, after a failure ever later.

Invariants: a key that was added is handed out at least once afterwards; a key in somebody's hands is not
handed out again until it is done, and then it is if it was added meanwhile; of several delays for one key the
earliest counts.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Hashable
from itertools import count
from typing import Generic, TypeVar

from imex_dra.kube.backoff import Backoff

K = TypeVar("K", bound=Hashable)


class ShutDown(Exception):
    """The queue was closed; what still waits is found again by whoever lists next."""


class WorkQueue(Generic[K]):
    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff(0.05, 60.0)
        self._ready: dict[K, None] = {}
        self._working: set[K] = set()
        self._added_meanwhile: set[K] = set()
        self._failures: dict[K, int] = {}
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = count()
        self._timer: asyncio.TimerHandle | None = None
        self._getters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Keys that could be handed out now."""
        return len(self._ready)

    def add(self, key: K) -> None:
        if self._closed:
            return
        self._due.pop(key, None)
        if key in self._working:
            self._added_meanwhile.add(key)
        elif key not in self._ready:
            self._ready[key] = None
            self._wake_getter()

    def add_after(self, key: K, delay: float) -> None:
        if delay <= 0:
            self.add(key)
            return
        due = asyncio.get_running_loop().time() + delay
        if self._closed or key in self._ready or self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._sequence), key))
        self._set_timer()

    def retry(self, key: K, *, at_least: float = 0.0) -> float:
        """Adds the key again later, the later the more often it failed in a row; returns the delay."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(at_least, self._backoff.delay(self._failures[key]))
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure is a first one."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key; call `done` with it afterwards, whatever happened."""
        while not self._ready or self._closed:
            if self._closed:
                raise ShutDown
            await self._wait()
        key = next(iter(self._ready))
        del self._ready[key]
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        self._working.remove(key)
        if key in self._added_meanwhile:
            self._added_meanwhile.remove(key)
            self.add(key)

    def close(self) -> None:
        self._closed = True
        if self._timer:
            self._timer.cancel()
        while self._getters:
            self._wake_getter()

    async def _wait(self) -> None:
        getter = asyncio.get_running_loop().create_future()
        self._getters.append(getter)
        try:
            await getter
        except asyncio.CancelledError:
            if getter in self._getters:
                self._getters.remove(getter)
            elif self._ready:
                self._wake_getter()
            raise

    def _wake_getter(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if self._heap:
            self._timer = asyncio.get_running_loop().call_at(self._heap[0][0], self._ripen)

    def _ripen(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                self.add(key)
        self._set_timer()
