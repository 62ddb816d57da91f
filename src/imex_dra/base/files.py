"""Files that are either the old or the new content, whatever instruction the process is killed at.

Nothing is forced to the disk: that costs milliseconds in the path of every pod, and only a power failure would
show it. After one, no container is left that could use what was written: a file that came out empty is noticed
by its checksum, one that came out old names claims of another boot, and both are made again.
"""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
        Path(temporary).rename(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
