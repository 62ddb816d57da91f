"""The programs of a real cluster: their names, and where they are found.

Directories are searched in this order:

1. `KUBEBUILDER_ASSETS`, if it is set.
2. The cache, which `imex_sandbox.kubernetes.build` fills.
3. This Python environment, which contains kubectl.
4. The PATH. It comes last because programs there can have any version. Those of Kubernetes are used only if they
   have the selected minor version. A containerd on the PATH is never used: on many machines it is too old to
   support CDI.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes import versions

CONTAINERD = "v2.2.9"
RUNC = "v1.3.6"
"""The one that this containerd is tested with."""
MPI_OPERATOR = "v0.7.0"
HELM = "v4.3.1"

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
"""With kubectl, which the sandbox uses to set up a control plane."""
SIMULATED_CLUSTER = (*CONTROL_PLANE, "mpi-operator")
"""What `imex up` and `imex demo` run, and build if it is missing."""
RUNTIME = ("containerd", "containerd-shim-runc-v2", "ctr")
BUILT = (*SIMULATED_CLUSTER, "kubelet", *RUNTIME, "helm")
TOOLS = ("openssl", "setpriv", "unshare")

_INSTALL = {
    "openssl": "install the package openssl",
    "setpriv": "install the package util-linux",
    "unshare": "install the package util-linux",
    "ip": "install the package iproute2",
    **dict.fromkeys(SIMULATED_CLUSTER, "run `imex up`, which builds it"),
    **dict.fromkeys(
        ("kubelet", *RUNTIME, "helm"), "run `python -m imex_sandbox.kubernetes.build`, which builds it"
    ),
}


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "imex-dra"


def cache_directory(name: str) -> Path:
    """The directory in the cache that a program is built into. It contains one version."""
    if name == "mpi-operator":
        return cache_root() / name / MPI_OPERATOR
    if name in RUNTIME:
        return cache_root() / "containerd" / CONTAINERD
    if name == "runc":
        return cache_root() / name / RUNC
    if name == "helm":
        return cache_root() / name / HELM
    return cache_root() / "kubernetes" / versions.kubernetes()


def find(name: str) -> Path:
    if found := _which(name):
        return found
    advice = _INSTALL.get(name, f"install {name}")
    if name in BUILT:
        advice += ", or set KUBEBUILDER_ASSETS to a directory that contains it"
    raise Misconfigured(f"{name} was not found: {advice}{_other_versions(name)}")


def find_built(name: str) -> Path | None:
    """Only in `KUBEBUILDER_ASSETS` and in the cache."""
    directories = [os.environ.get("KUBEBUILDER_ASSETS"), str(cache_directory(name))]
    found = shutil.which(name, path=os.pathsep.join(filter(None, directories)))
    return Path(found) if found else None


def require(names: Iterable[str]) -> None:
    """Raise an error for the first program that is missing. It says how to get the program."""
    for name in names:
        find(name)


def missing(names: Iterable[str] = (*CONTROL_PLANE, *TOOLS)) -> list[str]:
    return [name for name in names if not _which(name)]


def _which(name: str) -> Path | None:
    return find_built(name) or next((found for found in _installed(name) if _has_selected_version(found)), None)


def _installed(name: str) -> Iterator[Path]:
    """In this Python environment and, unless it belongs to containerd, on the PATH."""
    directories = [str(Path(sys.prefix) / "bin")]
    if name not in RUNTIME:
        directories += [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/sbin", "/sbin"]
    for directory in dict.fromkeys(directories):
        if found := shutil.which(name, path=directory):
            yield Path(found)


def _has_selected_version(program: Path) -> bool:
    if program.name not in versions.RELEASED:
        return True
    return versions.minor_of(versions.version_of(program)) == versions.selected()


def _other_versions(name: str) -> str:
    """Programs that were found, but not used. For the end of a sentence."""
    if name not in versions.RELEASED:
        return ""
    others = [f"{found} is {versions.version_of(found) or 'of an unknown version'}" for found in _installed(name)]
    return f" ({', '.join(others)}; Kubernetes {versions.selected()} is selected)" if others else ""
