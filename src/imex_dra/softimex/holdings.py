"""What the processes of this node have imported."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from imex_dra.softimex.errors import CudaError

MOST_IMPORTS = 16384


class Owner(Protocol):
    """A process that holds memory, as long as it is alive."""

    channel: int
    alive: bool
    allocations: dict[int, str]
    imports: set[int]

    def tell_lost(self, number: int, why: str) -> None: ...


class Import(NamedTuple):
    slot: int
    instance: str
    export: int
    file: str
    length: int


class Holdings:
    """Imports by number. `given_back` is called when nobody on this node holds an import any more."""

    def __init__(self, given_back: Callable[[Import], None]) -> None:
        self._given_back = given_back
        self._last = 0
        self._held: dict[int, tuple[Import, Owner]] = {}
        self._holders: dict[Import, int] = {}

    def require_room(self, owner: Owner) -> None:
        if not owner.alive:
            raise CudaError(CudaError.INVALID_VALUE, "the process has ended")
        if len(self._held) >= MOST_IMPORTS:
            raise CudaError(CudaError.OUT_OF_MEMORY, f"the node has {MOST_IMPORTS} imports: release some")

    def add(self, imported: Import, owner: Owner) -> int:
        self._last += 1
        self._held[self._last] = (imported, owner)
        self._holders[imported] = self._holders.get(imported, 0) + 1
        owner.imports.add(self._last)
        return self._last

    def remove(self, number: int, owner: Owner) -> Import:
        if number not in owner.imports:
            raise CudaError(CudaError.INVALID_VALUE, f"there is no import {number} of this process")
        imported, _ = self._held.pop(number)
        owner.imports.discard(number)
        self._holders[imported] -= 1
        if not self._holders[imported]:
            del self._holders[imported]
            self._given_back(imported)
        return imported

    def from_slot(self, slot: int) -> list[tuple[int, Owner]]:
        return [(number, owner) for number, (imported, owner) in self._held.items() if imported.slot == slot]
