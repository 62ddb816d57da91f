"""Atomic file writes: a reader sees the old content or the new, also if the writer is killed.

There is no fsync. It costs milliseconds in every prepare and only helps after a power failure, and then no
container survives that could use what was written: a truncated file fails its checksum, a stale one names claims
of an earlier boot, and both are rewritten.
"""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Raises OSError with `path` as its file name. That of the temporary file would be another one at each
    attempt, and a status that quotes it would be written again each time.
    """
    try:
        _write(path, content, mode)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
        Path(temporary).rename(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
