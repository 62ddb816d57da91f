"""A node's disk, as the programs of the node use it: errors, a full file system, and loss of power.

What is modeled:

- A killed program leaves on disk what it has written. It can be killed before each of its file operations.
- A full disk takes no new file and no data in one; rename, unlink and writes into existing blocks still work. A
  failing disk refuses any operation, with a probability.
- A loss of power keeps what the kernel had written back. The driver never calls fsync, so the changes of the last
  30 s may be lost: from some point in time on, and the content of the last file that was renamed may be missing.
  Writes in place, which a full disk leads to, are kept.
"""

import errno
import io
import os
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_WRITTEN_BACK_AFTER = 30.0
_open = io.open
"""As it is before `process` guards it: the disk itself is no program."""


class _Change(NamedTuple):
    at: float
    path: Path
    before: bytes | None


class Disk:
    def __init__(self, root: Path, chance: random.Random, now: Callable[[], float]) -> None:
        self.root = root
        self.is_full = False
        self.errors = 0.0
        """Share of operations that fail."""
        self.changes = 0
        self.on_change: Callable[[], None] = lambda: None
        """After a program has changed a file."""
        self._chance = chance
        self._now = now
        self._unwritten: deque[_Change] = deque(maxlen=100)

    def before(self, operation: str, args: tuple[Any, ...]) -> None:
        """Raises OSError if the operation fails; otherwise remembers what it replaces."""
        if self.errors and operation not in ("close", "flock") and self._chance.random() < self.errors:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(args[0]))
        if self.is_full and operation == "open" and args[1] & os.O_CREAT and not Path(args[0]).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[0]))
        if operation in ("rename", "unlink"):
            path = Path(args[-1])
            self._unwritten.append(_Change(self._now(), path, _content(path)))

    def after(self, operation: str) -> None:
        if operation in ("rename", "unlink", "pwrite", "ftruncate"):
            self.changes += 1
            self.on_change()

    def opened_for_writing(self, file: Any) -> Any:
        return FullFile(file) if self.is_full else file

    def lose_power(self) -> None:
        recent = [change for change in self._unwritten if change.at > self._now() - _WRITTEN_BACK_AFTER]
        self._unwritten.clear()
        kept = self._chance.randint(0, len(recent))
        for change in reversed(recent[kept:]):
            _restore(change)
        if kept and self._chance.random() < 0.3 and (path := recent[kept - 1].path).exists():
            path.write_bytes(b"")
        self.changes += 1

    @property
    def is_faulty(self) -> bool:
        return self.is_full or self.errors > 0

    def wipe(self) -> None:
        """Another machine with an empty disk."""
        self._unwritten.clear()
        for path in sorted(self.root.rglob("*")):
            if path.is_file():
                path.unlink()
        self.changes += 1


class FullFile:
    """A file that takes no data."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file

    def __enter__(self) -> "FullFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _content(path: Path) -> bytes | None:
    try:
        with _open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _restore(change: _Change) -> None:
    if change.before is None:
        change.path.unlink(missing_ok=True)
    else:
        change.path.write_bytes(change.before)
