"""The driver root: the directory on the host that holds the GPU driver's programs and libraries as a root does.

A driver that packages installed has the host's own root. The GPU Operator runs the driver in a container, whose
root is mounted at /run/nvidia/driver; on hosts with a driver of their own that directory exists too, but is empty.
nvidia-imex and nvidia-imex-ctl run from here (`daemon/chroot.sh`). What keeps them from running is a reason with
the next step. It is only a hint: nvidia-imex is started all the same, so a wrong one keeps no node out of service.
"""

import platform
import re
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from imex_dra.api import nodereasons
from imex_dra.api.names import IMEX_DIRECTORY, IMEX_PORTS
from imex_dra.hardware.host import read_text, resolve_in_root
from imex_dra.hardware.ports import find_port_holder

NVML = "libnvidia-ml.so.1"
MINIMUM_VERSION = "570.158.01"
"""The first driver whose nvidia-imex takes host names in its nodes file."""

_OPERATOR_ROOT = "/run/nvidia/driver"
_CLOUD_ROOTS = ("/home/kubernetes/bin/nvidia", "/usr/local/nvidia", "/opt/nvidia")
"""Where images of cloud providers have libraries of the driver. They are no roots: nothing can run from there."""

_LIBRARY_DIRECTORIES = ("usr/lib64", f"usr/lib/{platform.machine()}-linux-gnu", "lib64", "usr/lib", "lib")
_PROGRAM_DIRECTORIES = ("usr/bin", "usr/local/bin", "opt/nvidia/imex/bin", "usr/local/nvidia/imex/bin")
"""As in daemon/chroot.sh."""

_IMEX, _IMEX_CTL = "nvidia-imex", "nvidia-imex-ctl"
_CONTAINER_ID = re.compile("[0-9a-f]{64}")


class ImexProcess(Struct, frozen=True):
    """An nvidia-imex on the host."""

    pid: int
    unit: str = ""
    """Its systemd service, if it has one."""
    container: str = ""
    """ID of its container, if it runs in one."""


def find_driver_root(host: Path, given: str = "") -> str:
    """A path on the host, whose root directory is mounted at `host`. If it is `given`, that counts."""
    return given or (_OPERATOR_ROOT if _library_in(host, _OPERATOR_ROOT) else "/")


def find_library(host: Path, given: str = "") -> Path | None:
    """libnvidia-ml.so.1, from the driver root if it is there."""
    roots = (given,) if given else (_OPERATOR_ROOT, "/", *_CLOUD_ROOTS)
    return next((library for root in roots if (library := _library_in(host, root))), None)


def imex_problem(
    host: Path, driver_root: str, driver_version: str, own_directory: Path, ports: Collection[int] = IMEX_PORTS
) -> str:
    """Why nvidia-imex cannot run from the driver root, and what to do; empty if nothing is known. The nvidia-imex
    that runs with a configuration in `own_directory` is the one of this driver.
    """
    if is_too_old(driver_version):
        return nodereasons.driver_too_old(version=driver_version, minimum=MINIMUM_VERSION)
    root = resolve_in_root(host, driver_root)
    for program in (_IMEX, _IMEX_CTL):
        if not any(resolve_in_root(root, f"{path}/{program}").is_file() for path in _PROGRAM_DIRECTORIES):
            return nodereasons.imex_program_missing(program=program, driver_root=driver_root)
    own, others = imex_processes(host / "proc", own_directory)
    if others:
        return nodereasons.other_imex_running(
            pid=others[0].pid, unit=others[0].unit, container=others[0].container
        )
    holder = find_port_holder(host / "proc", ports, [process.pid for process in own])
    if holder is not None:
        return nodereasons.port_taken(port=holder.port, pid=holder.pid, program=holder.program)
    return ""


def host_imex_problem(host: Path, driver_root: str) -> str:
    """The same, if the host manages nvidia-imex."""
    root = resolve_in_root(host, driver_root)
    if not any(resolve_in_root(root, f"{path}/{_IMEX_CTL}").is_file() for path in _PROGRAM_DIRECTORIES):
        return nodereasons.host_ctl_missing(driver_root=driver_root)
    if not any(imex_processes(host / "proc", Path(IMEX_DIRECTORY))):
        return nodereasons.host_imex_not_running()
    return ""


def is_too_old(version: str) -> bool:
    """A version that cannot be read is not: a reason must be certain."""
    return bool(re.fullmatch(r"\d+(\.\d+)+", version)) and _numbers(version) < _numbers(MINIMUM_VERSION)


def imex_processes(proc: Path, own_directory: Path) -> tuple[list[ImexProcess], list[ImexProcess]]:
    """Our own, and others. The GPU driver gives a node only one IMEX session."""
    own: list[ImexProcess] = []
    others: list[ImexProcess] = []
    for name in proc.glob("[0-9]*/comm"):
        # By the name of the program, which a container or another user cannot hide from the host's /proc.
        if read_text(name).strip() != _IMEX:
            continue
        arguments = read_text(name.with_name("cmdline")).split("\0")
        # An empty command line is of a process that has just ended.
        if arguments[0]:
            is_own = any(each.startswith(f"{own_directory}/configs/") for each in arguments)
            found = imex_process(int(name.parent.name), read_text(name.with_name("cgroup")))
            (own if is_own else others).append(found)
    return own, others


def imex_process(pid: int, cgroup: str) -> ImexProcess:
    """`cgroup` is the content of /proc/<pid>/cgroup."""
    for line in cgroup.splitlines():
        last = line.rpartition("/")[2]
        if last.endswith(".service"):
            return ImexProcess(pid, unit=last)
        if found := _CONTAINER_ID.search(last):
            return ImexProcess(pid, container=found[0])
    return ImexProcess(pid)


def _library_in(host: Path, driver_root: str) -> Path | None:
    # A link in a driver root leads to a file in that root, not on the host.
    root = resolve_in_root(host, driver_root)
    paths = (resolve_in_root(root, f"{directory}/{NVML}") for directory in _LIBRARY_DIRECTORIES)
    return next((path for path in paths if path.is_file()), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
