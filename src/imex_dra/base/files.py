"""Atomic file writes: a reader sees the old content or the new, also if the writer is killed.

There is no fsync. It costs milliseconds in every prepare and only helps after a power failure, and then no
container survives that could use what was written: a truncated file fails its checksum, a stale one names claims
of an earlier boot, and both are rewritten.
"""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """An error names the file, and not the temporary one: a reason must not change with each attempt."""
    try:
        _replace(path, content, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, content: bytes, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
        Path(temporary).rename(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
