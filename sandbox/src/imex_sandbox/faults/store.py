"""The active faults of a cluster, in a file of its run directory.

Any later command can undo a fault, whatever became of the command that injected it. The file is removed with the
cluster. A command that injects or undoes a fault holds the lock until it is done, because the effect of a fault
depends on the others that are active.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from imex_dra.base.files import write_atomically
from imex_sandbox.faults.kinds import AnyFault


class ActiveFault(Struct, frozen=True):
    id: int
    fault: AnyFault
    since: str


class _Content(Struct):
    last_id: int = 0
    """Ids are not reused."""
    active: list[ActiveFault] = []


class FaultStore:
    def __init__(self, directory: Path) -> None:
        self._path = directory / "faults.json"
        self._lock = directory / "faults.lock"

    def read(self) -> list[ActiveFault]:
        return self._read().active

    @contextmanager
    def locked(self) -> Iterator[list[ActiveFault]]:
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.read()

    def add(self, fault: AnyFault, since: str) -> ActiveFault:
        content = self._read()
        content.last_id += 1
        added = ActiveFault(content.last_id, fault, since)
        content.active.append(added)
        self._write(content)
        return added

    def remove(self, number: int) -> None:
        content = self._read()
        content.active = [entry for entry in content.active if entry.id != number]
        self._write(content)

    def _read(self) -> _Content:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Content)
        except FileNotFoundError:
            return _Content()

    def _write(self, content: _Content) -> None:
        write_atomically(self._path, msgspec.json.encode(content))
