"""A ring all-reduce in which every rank reads only the memory of its left neighbor.

The data is divided into one chunk per rank. In the first half of the steps each rank adds a chunk of its
neighbor to its own. Then each rank has one chunk of the final sum, and in the second half the ranks pass these
on. A counter in front of the data tells the right neighbor how many steps are complete. Waiting for this
counter is enough: a complete chunk arrives only after the neighbor has read the incomplete one, so nothing is
overwritten early.

There may be many more ranks than CPUs. A waiting rank therefore sleeps about as long as it waited last time,
instead of taking CPU time from the ranks that it waits for. It reads the neighbor's memory with calls that
raise if the memory is gone, because a rank that ended must not crash the others with a fault.
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

DATA_OFFSET = 64 * 1024
"""Where the data begins in a rank's memory; the counter is at offset 0."""

MIN_SLEEP, MAX_SLEEP = 0.00005, 0.01
STEP_TIMEOUT = 120.0


class LeftMemory(Protocol):
    def read(self, offset: int, size: int) -> bytes: ...


class OwnMemory(Protocol):
    def write(self, offset: int, data: bytes) -> None: ...
    def view(self) -> memoryview: ...


class Step(NamedTuple):
    chunk: int
    add: bool


def schedule(rank: int, size: int) -> Iterator[Step]:
    """The chunks that a rank reads from its left neighbor, in order."""
    for step in range(size - 1):
        yield Step((rank - 1 - step) % size, add=True)
    for step in range(size - 1):
        yield Step((rank - step) % size, add=False)


def bounds(chunk: int, size: int, length: int, element: int) -> tuple[int, int]:
    """The byte range of a chunk: whole elements, distributed evenly."""
    elements = length // element
    return elements * chunk // size * element, elements * (chunk + 1) // size * element


def add(left: bytes, own: memoryview) -> bytes:
    """Add 32-bit integers element by element. Without overflow, this is one addition of two long integers."""
    total = int.from_bytes(left, "little") + int.from_bytes(own, "little")
    return total.to_bytes(len(own), "little")


class Ring:
    def __init__(
        self,
        rank: int,
        size: int,
        own: OwnMemory,
        left: LeftMemory,
        combine: Callable[[bytes, memoryview], bytes] = add,
    ) -> None:
        self._rank, self._size = rank, size
        self._own, self._left = own, left
        self._data = own.view()[DATA_OFFSET:]
        self._combine = combine
        self._completed = 0
        self._last_wait = 0.0

    def reduce(self, length: int, element: int) -> None:
        """Replace this rank's data with the sum over all ranks. No rank may change its data until all are done."""
        self.publish()
        for step in schedule(self._rank, self._size):
            self._wait()
            self.apply(step, length, element)
            self.publish()

    def ready(self) -> bool:
        """Whether the left neighbor has completed as many steps as this rank."""
        return int.from_bytes(self._left.read(0, 8), "little") >= self._completed

    def apply(self, step: Step, length: int, element: int) -> None:
        begin, end = bounds(step.chunk, self._size, length, element)
        theirs, ours = self._left.read(DATA_OFFSET + begin, end - begin), self._data[begin:end]
        ours[:] = self._combine(theirs, ours) if step.add else theirs

    def publish(self) -> None:
        """Count a completed step, which lets the right neighbor take its next one."""
        self._completed += 1
        self._own.write(0, self._completed.to_bytes(8, "little"))

    def close(self) -> None:
        self._data.release()

    def _wait(self) -> None:
        began = time.monotonic()
        sleep, waited = self._last_wait * 0.75, 0.0
        while not self.ready():
            if waited > STEP_TIMEOUT:
                raise TimeoutError(
                    f"the left neighbor of rank {self._rank} made no progress for {STEP_TIMEOUT:g} s"
                )
            time.sleep(min(max(sleep, MIN_SLEEP), MAX_SLEEP))
            waited = time.monotonic() - began
            sleep = waited / 4
        self._last_wait = (self._last_wait + waited) / 2
