"""Obtains the programs of a real cluster: from a mirror of releases, otherwise from source by the Go module proxy.

    python -m imex_sandbox.kubernetes.build

`make kube` runs this; `imex up` and `imex demo` build what they need. Only missing programs are built. One build
runs at a time. A program appears in the cache complete or not at all, so a build may be killed at any time, and
the next build continues with the programs that are still missing.
"""

import fcntl
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes import binaries, release, versions
from imex_sandbox.kubernetes.gobuild import GoBuild, Target

COMBINED = "control-plane"
"""The program that contains those of `COMBINED_PROGRAMS`, and runs the one whose name it is called by."""
COMBINED_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")

_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
"""What `--version` prints, and the user agent."""

RUNC = Target(
    "runc",
    "runc",
    "github.com/opencontainers/runc",
    (f"-ldflags=-s -w -X main.version={binaries.RUNC.removeprefix('v')}", "-tags=seccomp"),
)


def build_runc(environment: Mapping[str, str]) -> None:
    """Build it, unless it is in the cache. It needs C, unlike the others; the environment says how to link it."""
    with _build_lock():
        if not binaries.find_built("runc"):
            _build(RUNC._replace(environment=tuple(environment.items())), ["runc"])


def build(names: Sequence[str] = binaries.BUILT) -> None:
    """Obtain those of the programs that are missing. Must run in the main thread, as every `Process`."""
    if not binaries.missing(names):
        return
    try:
        with _build_lock():
            if mirror := release.mirror():
                _download_all(mirror, binaries.missing(names))
            # Again, because the build that held the lock may have built them.
            _build_all(binaries.missing(names))
    except KeyboardInterrupt:
        click.echo(
            "\nbuild stopped; finished programs are kept, and the next build continues from there", err=True
        )
        raise


def targets(names: Sequence[str]) -> dict[Target, list[str]]:
    """What to build for these programs, each with the programs that it provides.

    Several programs of the control plane are built as one: they have most of their packages in common, and linking
    one program is faster than linking four. A single one, such as etcd where the others come from a mirror, is
    built alone.
    """
    combined = [name for name in names if name in COMBINED_PROGRAMS]
    if len(combined) < 2:
        combined = []
    chosen = {_kubernetes(COMBINED, "imex-dra.io/sandbox/kubernetes"): combined} if combined else {}
    return chosen | {_single(name): [name] for name in names if name not in combined}


def _single(name: str) -> Target:
    if name == "etcd":
        return _kubernetes(name, "go.etcd.io/etcd/server/v3")
    if name in versions.RELEASED:
        return _kubernetes(name, f"k8s.io/kubernetes/cmd/{name}")
    return _OTHERS[name]


def _kubernetes(program: str, package: str) -> Target:
    version = versions.kubernetes()
    major, minor = versions.selected().split(".")
    variables = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    defines = " ".join(
        f"-X {package}.{name}={value}" for package in _VERSION_PACKAGES for name, value in variables.items()
    )
    return Target(
        program, "kubernetes", package, (f"-ldflags=-s -w {defines}",), module_file=versions.module_file(version)
    )


def _containerd(name: str) -> Target:
    package = f"github.com/containerd/containerd/v2/cmd/{name}"
    return Target(name, "containerd", package, ("-ldflags=-s -w", "-tags=no_btrfs no_devmapper no_zfs"))


_OTHERS = {
    **{name: _containerd(name) for name in binaries.RUNTIME},
    "mpi-operator": Target(
        "mpi-operator",
        "mpi-operator",
        "imex-dra.io/sandbox/mpi-operator",
        extra_files=(("github.com/kubeflow/mpi-operator", "deploy/v2beta1/mpi-operator.yaml"),),
    ),
    "helm": Target(
        "helm",
        "helm",
        "helm.sh/helm/v4/cmd/helm",
        (f"-ldflags=-s -w -X helm.sh/helm/v4/internal/version.version={binaries.HELM}",),
    ),
}


def _download_all(mirror: str, names: Sequence[str]) -> None:
    for name in names:
        if name in versions.RELEASED:
            directory = binaries.cache_directory(name)
            with _temporary_directory(directory) as temporary:
                release.download(mirror, temporary / name)
                (temporary / name).rename(directory / name)


def _build_all(names: Sequence[str]) -> None:
    if names:
        click.echo(
            f"building {', '.join(names)} from source. This takes minutes, but only once: the programs are kept"
            f" in {binaries.cache_root()}",
            err=True,
        )
    for target, provided in targets(names).items():
        _build(target, provided)


def _build(target: Target, names: Sequence[str]) -> None:
    directory = binaries.cache_directory(names[0])
    with _temporary_directory(directory) as temporary:
        go = GoBuild(target, temporary)
        go.run()
        # The program is renamed last: when it exists, its extra files exist too.
        for other, path in target.extra_files:
            shutil.copyfile(go.source_directory(other) / path, directory / Path(path).name)
        (temporary / target.program).rename(directory / target.program)
        # Links come after what they point to.
        for name in names:
            if name != target.program:
                (temporary / name).symlink_to(target.program)
                (temporary / name).rename(directory / name)


@contextmanager
def _build_lock() -> Iterator[None]:
    binaries.cache_root().mkdir(parents=True, exist_ok=True)
    with (binaries.cache_root() / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            click.echo("waiting for another build to finish", err=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _temporary_directory(target: Path) -> Iterator[Path]:
    """In the target directory, so that a rename is atomic. Removes what a killed build left there."""
    target.mkdir(parents=True, exist_ok=True)
    for stale in target.glob(".build-*"):
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(dir=target, prefix=".build-") as directory:
        yield Path(directory)


def main() -> int:
    try:
        build()
    except Misconfigured as error:
        click.echo(str(error), err=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
