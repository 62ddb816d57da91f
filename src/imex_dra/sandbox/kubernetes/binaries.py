"""Which programs a real cluster is made of, in which version, and where they are found.

An explicit `KUBEBUILDER_ASSETS` wins; then our own cache, which `make kube` fills; then this Python
environment (it carries kubectl); the PATH comes last, because what lies there may be of any version. A
containerd from the PATH is never used: many machines have one that is too old to know CDI.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from imex_dra.base.errors import Misconfigured

KUBERNETES = "v1.36.4"
CONTAINERD = "v2.2.9"
MPI_OPERATOR = "v0.7.0"

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
RUNTIME = ("containerd", "containerd-shim-runc-v2", "ctr")
BUILT = (*CONTROL_PLANE, "kubelet", *RUNTIME, "mpi-operator")
TOOLS = ("kubectl", "openssl", "setpriv", "unshare")

_SOURCES = {
    "kubectl": "it comes with the project's environment: run `make env`, or install kubectl",
    "openssl": "install the package openssl",
    "setpriv": "install the package util-linux",
    "unshare": "install the package util-linux",
    "ip": "install the package iproute2",
}
_BUILDS = (
    "run `make kube` in a source checkout, which builds it, or set KUBEBUILDER_ASSETS to a directory that has it"
)


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "imex-dra"


def cache(name: str) -> Path:
    """Where `make kube` puts a program that it builds."""
    return cache_root().joinpath(*_origin(name))


def _origin(name: str) -> tuple[str, str]:
    if name == "mpi-operator":
        return name, MPI_OPERATOR
    return ("containerd", CONTAINERD) if name in RUNTIME else ("kubernetes", KUBERNETES)


def find(name: str) -> Path:
    if found := shutil.which(name, path=os.pathsep.join(_searched(name))):
        return Path(found)
    raise Misconfigured(f"{name} was not found: {_SOURCES.get(name, _BUILDS)}")


def expect(names: Iterable[str]) -> None:
    """Says where the first that is missing comes from, before anything is begun."""
    for name in names:
        find(name)


def missing(names: Iterable[str] = (*CONTROL_PLANE, *TOOLS)) -> list[str]:
    """Names that `find` would not find, so that tests can be left out with a plain reason."""
    return [name for name in names if not shutil.which(name, path=os.pathsep.join(_searched(name)))]


def _searched(name: str) -> list[str]:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin" if name not in RUNTIME else None
    places = (assets, str(cache(name)), str(Path(sys.prefix) / "bin"), path)
    return [place for place in places if place]
