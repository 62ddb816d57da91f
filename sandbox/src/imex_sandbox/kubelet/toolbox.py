"""What a simulated container executes, given that no image is ever pulled.

A container runs its own command, unless a stand-in replaces it. Programs that its image would provide (`imex`,
`mpirun`, a replacement for sshd) come first on its PATH: shell scripts that start this Python, mounted at a path
that hides no host directory. If Python or this package is installed in a directory that containers do not share
with the host (/tmp, for example), that directory is mounted too.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import imex_dra
import imex_sandbox
from imex_dra.base.files import write_atomically
from imex_sandbox.kubelet.config import StandIn
from imex_sandbox.kubelet.runtime import BindMount
from imex_sandbox.kubelet.views.pod import Container
from imex_sandbox.mpi.rankprograms import DIRECTORY, MODULES, SUBCOMMANDS

RANK_SERVER = "mpi-rank-server"
PAUSE = ("sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done")
_TOOLS = {
    "imex": "imex_dra.cli",
    **MODULES,
    "mpirun": "imex_sandbox.mpi.launcher",
    "mpiexec": "imex_sandbox.mpi.launcher",
    RANK_SERVER: "imex_sandbox.mpi.server",
}
_PRIVATE = ("/tmp", "/run", "/dev")
"""Directories that a container does not share with the host."""

_SSHD = StandIn((RANK_SERVER,), command="*/usr/sbin/sshd*-D*")
"""The MPI Operator's workers, and most hand-written ones, run sshd and wait for the launcher."""


def container_argv(container: Container, stand_ins: Sequence[StandIn] = ()) -> tuple[str, ...]:
    """The first stand-in that matches wins; an image without a command pauses until it is terminated."""
    for stand_in in (*stand_ins, _SSHD):
        if stand_in.matches(container):
            return stand_in.argv
    return (container.command + container.args) if container.command else PAUSE


class Toolbox:
    """`directory` is on the host; containers see it as `DIRECTORY`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._packages = tuple(BindMount(path, str(path), read_only=True) for path in hidden(_package_paths()))

    def install(self) -> None:
        """Idempotent: each script appears atomically, and an interrupted installation is completed."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for name, module in _TOOLS.items():
            if not (self._directory / name).exists():
                write_atomically(self._directory / name, _script(name, module).encode(), mode=0o755)

    @property
    def mounts(self) -> tuple[BindMount, ...]:
        return (BindMount(self._directory, DIRECTORY, read_only=True), *self._packages)


def _script(name: str, module: str) -> str:
    run = f"exec {shlex.quote(sys.executable)} -P -m"
    lines = ["#!/bin/sh"]
    if name == "imex":
        cases = " ".join(f'{word}) shift; {run} {_TOOLS[tool]} "$@";;' for word, tool in SUBCOMMANDS.items())
        lines.append(f'case "$1" in {cases} esac')
    return "\n".join([*lines, f'{run} {module} "$@"', ""])


def search_path(path: str) -> str:
    return f"{DIRECTORY}:{path}"


def hidden(paths: tuple[Path, ...]) -> list[Path]:
    """The paths that a container does not see, without duplicates and without paths inside one another."""
    unseen = sorted({path for path in paths if str(path).startswith(tuple(f"{private}/" for private in _PRIVATE))})
    return [path for path in unseen if not any(other in path.parents for other in unseen)]


def _package_paths() -> tuple[Path, ...]:
    packages = (Path(package.__path__[0]).parent for package in (imex_dra, imex_sandbox))
    return Path(sys.prefix), Path(sys.base_prefix), *packages
