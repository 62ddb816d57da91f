"""The cgroups of our nodes, all under one name in every hierarchy, so that none is left behind.

A node's pid 1 sits in the group `init` of the node's. Where that is empty the node is gone, be it by a crash,
and whoever comes next removes what it left.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from imex_dra.base.errors import Misconfigured

PARENT = "imex-dra"

_MOUNT = Path("/sys/fs/cgroup")
_INIT = "init"


def adopt(name: str, pid: int) -> str:
    """Make a cgroup for a node whose pid 1 is this, and return its path within a hierarchy."""
    with _exclusively():
        _sweep()
        for hierarchy in hierarchies():
            _make(hierarchy / PARENT / name / _INIT).write_text(str(pid))
    return f"/{PARENT}/{name}"


def check() -> None:
    """Raise unless groups can be made in every hierarchy."""
    if not hierarchies():
        raise Misconfigured(f"no cgroups are mounted at {_MOUNT}: a kubelet needs them")
    with _exclusively():
        for hierarchy in hierarchies():
            _make(hierarchy / PARENT / "check")
        _sweep()


def sweep() -> None:
    with _exclusively():
        _sweep()


def hierarchies() -> list[Path]:
    """One in version 2, one for each controller in version 1, both on a hybrid machine."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [Path(words[4]) for words in mounts if words[words.index("-") + 1] in ("cgroup", "cgroup2")]


def groups(hierarchy: Path) -> list[Path]:
    """The nodes' groups in it, of living nodes and others."""
    return list((hierarchy / PARENT).glob("*/"))


def _sweep() -> None:
    for hierarchy in hierarchies():
        for node in groups(hierarchy):
            if not _lives(node):
                _remove(node)
        with suppress(OSError):
            (hierarchy / PARENT).rmdir()


def _lives(node: Path) -> bool:
    init = node / _INIT / "cgroup.procs"
    return init.exists() and init.read_text() != ""


def _remove(node: Path) -> None:
    """What still has a dying process in it stays for the next sweep."""
    for directory, _, _ in os.walk(node, topdown=False):
        with suppress(OSError):
            Path(directory).rmdir()


def _make(group: Path) -> Path:
    if not group.is_dir():
        _make(group.parent)
        _pass_on_controllers(group.parent)
        group.mkdir()
        _inherit_cpuset(group)
    return group / "cgroup.procs"


def _pass_on_controllers(parent: Path) -> None:
    """Version 2: a group has those controllers that its parent passes on; some kernels keep one back."""
    controllers = parent / "cgroup.controllers"
    for controller in controllers.read_text().split() if controllers.exists() else []:
        with suppress(OSError):
            (parent / "cgroup.subtree_control").write_text(f"+{controller}")


def _inherit_cpuset(group: Path) -> None:
    """Version 1: a group can hold a process only when it has processors and memory."""
    for setting in ("cpuset.cpus", "cpuset.mems"):
        if (group / "cgroup.clone_children").exists() and (group / setting).exists():
            (group / setting).write_text((group.parent / setting).read_text())


@contextmanager
def _exclusively() -> Iterator[None]:
    descriptor = os.open(_MOUNT, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
