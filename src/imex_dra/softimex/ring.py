"""A ring all-reduce in which every rank reads the memory of its left neighbour, and nobody else's.

The data is cut into as many chunks as there are ranks. In the first half of the steps each rank adds a chunk of
its neighbour's to its own; after that each owns one chunk of the whole sum, and in the second half they hand
those on. A counter in front of the data tells the right neighbour how far we are; it alone is waited for: a
chunk comes back complete only after the neighbour has taken the incomplete one, so nothing is overwritten early.

Ranks may be many more than processors: who waits sleeps about as long as it waited last time, instead of taking
the time from those it waits for. The neighbour's memory is read by calls that raise if it is gone: a rank that
died must not take the others with it by a fault.
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

DATA = 64 * 1024
"""Where the data begins in a rank's memory; the counter is at its very front."""

SHORTEST_NAP, LONGEST_NAP = 0.00005, 0.01
PATIENCE = 120.0


class Left(Protocol):
    def read(self, offset: int, size: int) -> bytes: ...


class Own(Protocol):
    def write(self, offset: int, data: bytes) -> None: ...
    def view(self) -> memoryview: ...


class Step(NamedTuple):
    chunk: int
    add: bool


def schedule(rank: int, size: int) -> Iterator[Step]:
    """What a rank takes from its left neighbour, in order."""
    for step in range(size - 1):
        yield Step((rank - 1 - step) % size, add=True)
    for step in range(size - 1):
        yield Step((rank - step) % size, add=False)


def bounds(chunk: int, size: int, length: int, unit: int) -> tuple[int, int]:
    """The bytes of a chunk: whole elements, as even as can be."""
    elements = length // unit
    return elements * chunk // size * unit, elements * (chunk + 1) // size * unit


def add(left: bytes, own: memoryview) -> bytes:
    """Element by element, on whole numbers of 32 bits that don't overflow: one addition of two long numbers."""
    total = int.from_bytes(left, "little") + int.from_bytes(own, "little")
    return total.to_bytes(len(own), "little")


class Ring:
    def __init__(
        self,
        rank: int,
        size: int,
        own: Own,
        left: Left,
        plus: Callable[[bytes, memoryview], bytes] = add,
    ) -> None:
        self._rank, self._size = rank, size
        self._own, self._left = own, left
        self._data = own.view()[DATA:]
        self._plus = plus
        self._done = 0
        self._pace = 0.0

    def reduce(self, length: int, unit: int = 4) -> None:
        """Replace our data by the sum of everybody's. Nobody may touch it again before all are through."""
        self._advance()
        for step in schedule(self._rank, self._size):
            self._wait_for(self._done)
            begin, end = bounds(step.chunk, self._size, length, unit)
            theirs, ours = self._left.read(DATA + begin, end - begin), self._data[begin:end]
            ours[:] = self._plus(theirs, ours) if step.add else theirs
            self._advance()

    def close(self) -> None:
        self._data.release()

    def _advance(self) -> None:
        self._done += 1
        self._own.write(0, self._done.to_bytes(8, "little"))

    def _wait_for(self, steps: int) -> None:
        began = time.monotonic()
        nap, waited = self._pace * 0.75, 0.0
        while int.from_bytes(self._left.read(0, 8), "little") < steps:
            if waited > PATIENCE:
                raise TimeoutError(f"the left neighbour of rank {self._rank} stands still for {PATIENCE:g} s")
            time.sleep(min(max(nap, SHORTEST_NAP), LONGEST_NAP))
            waited = time.monotonic() - began
            nap = waited / 4
        self._pace = (self._pace + waited) / 2
