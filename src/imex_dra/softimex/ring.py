"""A ring all-reduce in which every rank reads the memory of its left neighbour, and nobody else's.

The data is cut into as many chunks as there are ranks. In the first half of the steps each rank adds a chunk of
its neighbour's to its own; after that each owns one chunk of the whole sum, and in the second half they hand
those on. A counter in front of the data tells the right neighbour how far we are; it alone is waited for: a
chunk comes back complete only after the neighbour has taken the incomplete one, so nothing is overwritten early.
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

DATA = 64 * 1024
"""Where the data begins in a rank's memory; the counter is at its very front."""

LONGEST_NAP = 0.002
PATIENCE = 120.0


class Memory(Protocol):
    def read(self, offset: int, size: int) -> bytes: ...
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


def add(left: memoryview, own: memoryview) -> bytes:
    """Element by element, on whole numbers of 32 bits that don't overflow: one addition of two long numbers."""
    total = int.from_bytes(left, "little") + int.from_bytes(own, "little")
    return total.to_bytes(len(own), "little")


class Ring:
    def __init__(
        self,
        rank: int,
        size: int,
        own: Memory,
        left: Memory,
        plus: Callable[[memoryview, memoryview], bytes] = add,
    ) -> None:
        self._rank, self._size = rank, size
        self._own, self._left = own, left
        self._data, self._left_data = own.view()[DATA:], left.view()[DATA:]
        self._plus = plus
        self._done = 0

    def reduce(self, length: int, unit: int = 4) -> None:
        """Replace our data by the sum of everybody's. Nobody may touch it again before all are through."""
        self._advance()
        for step in schedule(self._rank, self._size):
            self._wait_for(self._done)
            begin, end = bounds(step.chunk, self._size, length, unit)
            theirs, ours = self._left_data[begin:end], self._data[begin:end]
            ours[:] = self._plus(theirs, ours) if step.add else theirs
            self._advance()

    def close(self) -> None:
        self._data.release()
        self._left_data.release()

    def _advance(self) -> None:
        self._done += 1
        self._own.write(0, self._done.to_bytes(8, "little"))

    def _wait_for(self, steps: int) -> None:
        nap, deadline = 0.0, time.monotonic() + PATIENCE
        while int.from_bytes(self._left.read(0, 8), "little") < steps:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the left neighbour of rank {self._rank} stands still for {PATIENCE:g} s")
            time.sleep(nap)
            nap = min(nap + 0.00005, LONGEST_NAP)
