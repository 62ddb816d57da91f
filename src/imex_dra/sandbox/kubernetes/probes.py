"""What a real node needs, asked of this machine one by one, each with the reason if it is not there.

An obstacle is curable if the project itself can remove it (build, download, make); a run that leaves something
out for a curable reason has failed. What the machine does not allow is not curable, and after such an obstacle
nothing more is asked, so that nothing is downloaded in vain.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from imex_dra.base.errors import ImexError, Misconfigured
from imex_dra.sandbox.kubernetes import binaries, cgroups, images, packages, pythonimage, tools

_NAMESPACES = "unshare --pid --mount --net --uts --ipc --fork --mount-proc true"
_CABLE = """
"$0" link add end0 type veth peer name end1 &&
"$0" link add hub type bridge &&
"$0" link set end0 master hub
"""


class Probe(NamedTuple):
    part: str
    obstacle: str
    curable: bool


class _Question(NamedTuple):
    part: str
    ask: Callable[[], object]
    curable: bool = False


@cache
def probes() -> tuple[Probe, ...]:
    return tuple(_answers())


def obstacles() -> list[Probe]:
    return [probe for probe in probes() if probe.obstacle]


def _answers() -> Iterator[Probe]:
    for part, ask, curable in _questions():
        obstacle = _obstacle(ask)
        yield Probe(part, obstacle, curable)
        if obstacle and not curable:
            return


def _questions() -> list[_Question]:
    fetched = packages.available()
    return [
        _Question("root", _is_root),
        _Question("namespaces", lambda: _run(*_NAMESPACES.split())),
        _Question("bridges and veths", lambda: _run("unshare", "--net", "sh", "-c", _CABLE, binaries.find("ip"))),
        _Question("overlay file system", _has_overlay),
        _Question("cgroups", cgroups.check),
        _Question(
            "programs of Kubernetes", _built(*binaries.CONTROL_PLANE, *binaries.TOOLS, "kubelet"), curable=True
        ),
        _Question("containerd", _built(*binaries.RUNTIME), curable=True),
        _Question("runc", lambda: _run(tools.runc(), "--version"), curable=fetched),
        _Question("CNI plugins", tools.network_plugins, curable=fetched),
        _Question("images pause and busybox", lambda: (images.pause(), images.busybox()), curable=fetched),
        _Question("image with Python and our wheel", pythonimage.imex, curable=fetched),
    ]


def _obstacle(ask: Callable[[], object]) -> str:
    try:
        ask()
    except (ImexError, OSError) as error:
        return str(error)
    return ""


def _is_root() -> None:
    if os.geteuid() != 0:
        raise Misconfigured("a kubelet runs as root only: run as root")


def _has_overlay() -> None:
    if "overlay" not in Path("/proc/filesystems").read_text():
        raise Misconfigured("the kernel has no overlay file system: load the module overlay")


def _built(*names: str) -> Callable[[], object]:
    return lambda: [binaries.find(name) for name in names]


def _run(*argv: str | Path) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Misconfigured(f"{argv[0]} failed: {done.stderr.strip()}")
