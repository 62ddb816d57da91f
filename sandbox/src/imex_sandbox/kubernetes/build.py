"""Builds the programs of a real cluster from source, with modules from the Go module proxy.

    python -m imex_sandbox.kubernetes.build

`make kube` runs this; `imex up` and `imex demo` build what they need. Only missing programs are built. One build
runs at a time. A program appears in the cache complete or not at all, so a build may be killed at any time, and
the next build continues with the programs that are still missing.
"""

import fcntl
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes import binaries, toolchain
from imex_sandbox.process import Process

MODULES = Path(__file__).with_name("modules")
LINE_EVERY_SECONDS = 20

_VERSION_PACKAGE = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = binaries.KUBERNETES.removeprefix("v").split(".")


class Target(NamedTuple):
    """How to build one program.

    `extra_files` are pairs of a module and a path in it: files that are copied into the cache next to the program.
    `environment` is set in addition to that of the toolchain.
    """

    module: str
    package: str
    flags: tuple[str, ...] = ("-ldflags=-s -w",)
    extra_files: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


def _kubernetes(package: str) -> Target:
    version = {"gitVersion": binaries.KUBERNETES, "gitMajor": _MAJOR, "gitMinor": _MINOR}
    defines = " ".join(f"-X {_VERSION_PACKAGE}.{name}={value}" for name, value in version.items())
    return Target("kubernetes", package, (f"-ldflags=-s -w {defines}",))


def _containerd(name: str) -> Target:
    package = f"github.com/containerd/containerd/v2/cmd/{name}"
    return Target("containerd", package, ("-ldflags=-s -w", "-tags=no_btrfs no_devmapper no_zfs"))


TARGETS = {
    "etcd": _kubernetes("go.etcd.io/etcd/server/v3"),
    **{name: _kubernetes(f"k8s.io/kubernetes/cmd/{name}") for name in binaries.BUILT if name.startswith("kube")},
    **{name: _containerd(name) for name in binaries.RUNTIME},
    "mpi-operator": Target(
        "mpi-operator",
        "imex-dra.io/sandbox/mpi-operator",
        extra_files=(("github.com/kubeflow/mpi-operator", "deploy/v2beta1/mpi-operator.yaml"),),
    ),
    "helm": Target(
        "helm",
        "helm.sh/helm/v4/cmd/helm",
        (f"-ldflags=-s -w -X helm.sh/helm/v4/internal/version.version={binaries.HELM}",),
    ),
}

RUNC = Target(
    "runc",
    "github.com/opencontainers/runc",
    (f"-ldflags=-s -w -X main.version={binaries.RUNC.removeprefix('v')}", "-tags=seccomp"),
)


def build_runc(environment: Mapping[str, str]) -> None:
    """Build it, unless it is in the cache. It needs C, unlike the others; the environment says how to link it."""
    with _build_lock():
        if not binaries.find_built("runc"):
            _build("runc", RUNC._replace(environment=tuple(environment.items())))


def build(names: Sequence[str] = binaries.BUILT) -> None:
    """Build those of the programs that are missing. Must run in the main thread, as every `Process`."""
    if not binaries.missing(names):
        return
    try:
        with _build_lock():
            # Again, because the build that held the lock may have built them.
            _build_all(binaries.missing(names))
    except KeyboardInterrupt:
        click.echo(
            "\nbuild stopped; finished programs are kept, and the next build continues from there", err=True
        )
        raise


def _build_all(names: Sequence[str]) -> None:
    if names:
        click.echo(
            f"building {', '.join(names)} from source. This takes minutes, but only once: the programs are kept"
            f" in {binaries.cache_root()}",
            err=True,
        )
    for name in names:
        _build(name, TARGETS[name])


def _build(name: str, target: Target) -> None:
    module = MODULES / target.module
    go = toolchain.find_go(module, MODULES / "go.txt")
    directory = binaries.cache_directory(name)
    with _temporary_directory(directory) as temporary:
        GoBuild(go, module, target, temporary / name).run()
        # The program is renamed last: when it exists, its extra files exist too.
        for other, path in target.extra_files:
            shutil.copyfile(_source_directory(go, module, other) / path, directory / Path(path).name)
        (temporary / name).rename(directory / name)


def _source_directory(go: Path, module: Path, dependency: str) -> Path:
    """Where Go keeps the downloaded source of a dependency of the module."""
    argv = [str(go), "list", "-m", "-f", "{{.Dir}}", dependency]
    done = subprocess.run(
        argv, cwd=module, env=toolchain.environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Misconfigured(f"go cannot find the source of {dependency}: {done.stderr.strip()}")
    return Path(done.stdout.strip())


class GoBuild:
    """`go list` downloads modules and counts the packages; `go build -v` prints each package that is done."""

    def __init__(self, go: Path, module: Path, target: Target, output: Path) -> None:
        self._go = go
        self._module = module
        self._target = target
        self._output = output
        self._progress = Progress(f"building {output.name}")

    def run(self) -> None:
        packages = self._run("list", "-deps", self._target.package, state="{downloaded} modules downloaded")
        options = ["-v", "-trimpath", "-buildvcs=false", "-o", str(self._output), *self._target.flags]
        self._run("build", *options, self._target.package, state=f"{{packages}}/{packages} packages")
        self._progress.finish("done")

    def _run(self, verb: str, *arguments: str, state: str) -> int:
        """Returns the number of packages that Go printed."""
        log = self._output.with_suffix(f".{verb}.log")
        argv = [str(self._go), verb, *arguments]
        environment = toolchain.environment() | dict(self._target.environment)
        process = Process("go", argv, log=log, cwd=self._module, env=environment)
        process.start()
        try:
            while not process.wait(within=0.5):
                self._progress.show(state.format(**_count(log)))
        finally:
            process.stop()
        self._check(process, log)
        return _count(log)["packages"]

    def _check(self, process: Process, log: Path) -> None:
        if process.exit_code:
            self._progress.finish("failed")
            tail = log.read_text().splitlines()[-20:]
            raise Misconfigured("\n".join([f"go could not build {self._target.package}:", *tail]))


class Progress:
    """Progress of long work: one line that is rewritten at a terminal, otherwise a new line from time to time."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._terminal = sys.stderr.isatty()
        self._began = self._shown = time.monotonic()

    def show(self, state: str) -> None:
        line = f"{self._title}: {state}, {self._elapsed()}"
        if self._terminal:
            click.echo(f"\r\x1b[2K{line}", nl=False, err=True)
        elif time.monotonic() - self._shown >= LINE_EVERY_SECONDS:
            self._shown = time.monotonic()
            click.echo(line, err=True)

    def finish(self, result: str) -> None:
        erase = "\r\x1b[2K" if self._terminal else ""
        click.echo(f"{erase}{self._title}: {result}, {self._elapsed()}", err=True)

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


def _count(log: Path) -> dict[str, int]:
    lines = log.read_text().splitlines()
    downloaded = sum(line.startswith("go: ") for line in lines)
    return {"downloaded": downloaded, "packages": len(lines) - downloaded}


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
