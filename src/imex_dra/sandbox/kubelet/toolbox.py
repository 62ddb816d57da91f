"""Programs that every simulated container finds first on its PATH: `imex`, `mpirun`, and what stands for sshd.

An image would carry them. Here they are lines of shell that start this very Python, mounted where no host
directory is hidden; and if Python itself, or this package, lies where a container has files of its own (/tmp,
say), it is mounted too.
"""

import shlex
import sys
from pathlib import Path

import imex_dra
from imex_dra.base.files import write_atomically
from imex_dra.sandbox.kubelet.containers import Bind

DIRECTORY = "/run/imex/bin"
RANK_SERVER = "mpi-rank-server"
_TOOLS = {
    "imex": "imex_dra.cli",
    "all_reduce_perf": "imex_dra.cli allreduce",
    "nvbandwidth": "imex_dra.cli bandwidth",
    "mpirun": "imex_dra.sandbox.mpi.launcher",
    "mpiexec": "imex_dra.sandbox.mpi.launcher",
    RANK_SERVER: "imex_dra.sandbox.mpi.server",
}
_OWN = ("/tmp", "/run", "/dev")


class Toolbox:
    """`place` is on the machine; containers see it as `DIRECTORY`."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._homes = tuple(Bind(home, str(home), read_only=True) for home in hidden(_homes()))

    def fill(self) -> None:
        """Once; each appears whole, and what was left half filled is filled."""
        self._place.mkdir(parents=True, exist_ok=True)
        for name, words in _TOOLS.items():
            if not (self._place / name).exists():
                script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {words} "$@"\n'
                write_atomically(self._place / name, script.encode(), mode=0o755)

    @property
    def binds(self) -> tuple[Bind, ...]:
        return (Bind(self._place, DIRECTORY, read_only=True), *self._homes)


def path(others: str) -> str:
    return f"{DIRECTORY}:{others}"


def hidden(homes: tuple[Path, ...]) -> list[Path]:
    """Those that a container would not see, each once and none within another."""
    unseen = sorted({home for home in homes if str(home).startswith(tuple(f"{own}/" for own in _OWN))})
    return [home for home in unseen if not any(other in home.parents for other in unseen)]


def _homes() -> tuple[Path, ...]:
    return Path(sys.prefix), Path(sys.base_prefix), Path(imex_dra.__file__).parents[1]
