"""The nvidia-imex process of a node, found by what it was started with: it is a grandchild, and comes and goes."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from imex_dra.base.errors import Rejected

_PROGRAM = b"imex_dra.softimex.daemon"


def pid(root: Path) -> int:
    """`root` is the node's."""
    for number in _pids(root):
        return number
    raise Rejected(f"no nvidia-imex runs on the node in {root}")


def send(root: Path, number: signal.Signals) -> None:
    """One that is gone needs no signal."""
    for found in _pids(root):
        with suppress(ProcessLookupError):
            os.kill(found, number)


def _pids(root: Path) -> Iterator[int]:
    mark = f"IMEX_NODE_ROOT={root}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if _PROGRAM in words and mark in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)
