"""Which faults stand in a cluster: a file in its run directory, so that whoever comes next can undo them.

The file goes with the cluster. Whoever changes something holds the lock until it is done, because what a fault
does depends on the others that stand.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from imex_dra.base.files import write_atomically
from imex_dra.sandbox.faults.kinds import AnyFault


class Standing(Struct, frozen=True):
    id: int
    fault: AnyFault
    since: str


class Content(Struct):
    last: int = 0
    standing: list[Standing] = []


class Record:
    def __init__(self, directory: Path) -> None:
        self._path = directory / "faults.json"
        self._lock = directory / "faults.lock"

    def read(self) -> list[Standing]:
        return self._content().standing

    @contextmanager
    def held(self) -> Iterator[list[Standing]]:
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.read()

    def add(self, fault: AnyFault, since: str) -> Standing:
        content = self._content()
        content.last += 1
        fresh = Standing(content.last, fault, since)
        content.standing.append(fresh)
        self._write(content)
        return fresh

    def remove(self, number: int) -> None:
        content = self._content()
        content.standing = [entry for entry in content.standing if entry.id != number]
        self._write(content)

    def _content(self) -> Content:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Content)
        except FileNotFoundError:
            return Content()

    def _write(self, content: Content) -> None:
        write_atomically(self._path, msgspec.json.encode(content))
