"""The cgroups of real nodes. They are all below one cgroup, so that stale cgroups can be found and removed.

Pid 1 of a node is in the cgroup `init` below the cgroup of the node. If `init` is empty, the node has stopped or
crashed, and the next node that starts or stops removes its cgroups.
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


def create(name: str, pid: int) -> str:
    """Create the cgroup of a node, move its pid 1 there, and return the path of the cgroup in its hierarchy."""
    with _lock():
        _remove_stale()
        for hierarchy in hierarchies():
            _mkdir(hierarchy / PARENT / name / _INIT).write_text(str(pid))
    return f"/{PARENT}/{name}"


def check() -> None:
    """Raise an error unless a cgroup can be created in every hierarchy."""
    if not hierarchies():
        raise Misconfigured(f"no cgroup file system is mounted: mount one at {_MOUNT}, which a kubelet requires")
    with _lock():
        for hierarchy in hierarchies():
            _mkdir(hierarchy / PARENT / "check")
        _remove_stale()


def remove_stale() -> None:
    with _lock():
        _remove_stale()


def hierarchies() -> list[Path]:
    """Mount points: one with cgroup v2, one per controller with cgroup v1, both on a hybrid machine."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [Path(words[4]) for words in mounts if words[words.index("-") + 1] in ("cgroup", "cgroup2")]


def node_cgroups(hierarchy: Path) -> list[Path]:
    """Including cgroups of nodes that no longer run."""
    return list((hierarchy / PARENT).glob("*/"))


def _remove_stale() -> None:
    for hierarchy in hierarchies():
        for node in node_cgroups(hierarchy):
            if not _is_running(node):
                _remove(node)
        with suppress(OSError):
            (hierarchy / PARENT).rmdir()


def _is_running(node: Path) -> bool:
    init = node / _INIT / "cgroup.procs"
    return init.exists() and init.read_text() != ""


def _remove(node: Path) -> None:
    """A cgroup that still contains a dying process cannot be removed now. A later call removes it."""
    for directory, _, _ in os.walk(node, topdown=False):
        with suppress(OSError):
            Path(directory).rmdir()


def _mkdir(group: Path) -> Path:
    if not group.is_dir():
        _mkdir(group.parent)
        _enable_controllers(group.parent)
        group.mkdir()
        _inherit_cpuset(group)
    return group / "cgroup.procs"


def _enable_controllers(parent: Path) -> None:
    """cgroup v2: a cgroup has the controllers that its parent enables. Some kernels do not allow all of them."""
    controllers = parent / "cgroup.controllers"
    for controller in controllers.read_text().split() if controllers.exists() else []:
        with suppress(OSError):
            (parent / "cgroup.subtree_control").write_text(f"+{controller}")


def _inherit_cpuset(group: Path) -> None:
    """cgroup v1: a cgroup can contain processes only after its CPUs and memory nodes are set."""
    for setting in ("cpuset.cpus", "cpuset.mems"):
        if (group / "cgroup.clone_children").exists() and (group / setting).exists():
            (group / setting).write_text((group.parent / setting).read_text())


@contextmanager
def _lock() -> Iterator[None]:
    descriptor = os.open(_MOUNT, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
