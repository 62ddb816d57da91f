"""Deduplicating work queue with per-key back-off, fair to groups of keys.

Invariants:

- A key that was added is handed out at least once afterwards.
- A key that is being processed is not handed out again before `done`. If it was added meanwhile, it is handed out
  once more after `done`.
- Of several delays for one key, the earliest counts.
- Groups take turns: a key waits for at most one key of each other group, and for the keys of its own group that
  were ready before it. With namespaces as groups, 10,000 objects in one of them do not delay an object in another.
"""

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from itertools import count
from typing import Generic, TypeVar

from imex_dra.kube.backoff import Backoff

K = TypeVar("K", bound=Hashable)


class ShutDown(Exception):
    """The queue is closed. Keys that are left in it are found again by the next list."""


class WorkQueue(Generic[K]):
    def __init__(
        self, backoff: Backoff | None = None, *, group: Callable[[K], Hashable] = lambda key: None
    ) -> None:
        """`group`: the group of a key; one group for all keys by default."""
        self._backoff = backoff or Backoff(0.05, 60.0)
        self._group = group
        self._ready: set[K] = set()
        self._turns: OrderedDict[Hashable, deque[K]] = OrderedDict()
        """The ready keys of each group; the next turn comes first."""
        self._processing: set[K] = set()
        self._added_meanwhile: set[K] = set()
        self._failures: dict[K, int] = {}
        self._due: dict[K, tuple[float, int]] = {}
        """The heap entry that counts for each delayed key; other entries of the key are outdated."""
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = count()
        self._timer: asyncio.TimerHandle | None = None
        self._getters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """The number of keys that can be handed out now."""
        return len(self._ready)

    def add(self, key: K) -> None:
        if self._closed:
            return
        self._due.pop(key, None)
        if key in self._processing:
            self._added_meanwhile.add(key)
        elif key not in self._ready:
            self._ready.add(key)
            self._turns.setdefault(self._group(key), deque()).append(key)
            self._wake_getter()

    def add_after(self, key: K, delay: float) -> None:
        if delay <= 0:
            self.add(key)
            return
        if self._closed or key in self._ready:
            return
        due = asyncio.get_running_loop().time() + delay
        if key in self._due and self._due[key][0] <= due:
            return
        entry = self._due[key] = due, next(self._sequence)
        heapq.heappush(self._heap, (*entry, key))
        self._set_timer()

    def retry(self, key: K, *, at_least: float = 0.0) -> float:
        """Adds the key after a delay that grows with its consecutive failures, and returns the delay."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(at_least, self._backoff.delay(self._failures[key]))
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Resets the key's back-off."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key. The caller must call `done` with it, also after a failure."""
        while not self._ready or self._closed:
            if self._closed:
                raise ShutDown
            await self._wait()
        group, keys = self._turns.popitem(last=False)
        key = keys.popleft()
        if keys:
            self._turns[group] = keys
        self._ready.remove(key)
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        self._processing.remove(key)
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
                # This getter was woken for a key and then cancelled: another one must take the key.
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
        while self._heap and self._is_outdated(*self._heap[0]):
            heapq.heappop(self._heap)
        if self._heap:
            self._timer = asyncio.get_running_loop().call_at(self._heap[0][0], self._add_due)

    def _add_due(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._heap and self._heap[0][0] <= now:
            due, sequence, key = heapq.heappop(self._heap)
            if not self._is_outdated(due, sequence, key):
                self.add(key)
        self._set_timer()

    def _is_outdated(self, due: float, sequence: int, key: K) -> bool:
        return self._due.get(key) != (due, sequence)
