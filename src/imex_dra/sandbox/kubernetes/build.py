"""Builds the programs of a real cluster from the Go module proxy, once: `make kube`.

What is there already is not built again. One build runs at a time. A program appears in the cache complete or
not at all, so a build may be killed at any moment and the next one goes on from there.
"""

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes import binaries, toolchain
from imex_dra.sandbox.kubernetes.progress import Progress
from imex_dra.sandbox.process import Process

ROOT = Path(__file__).parents[4]

_STAMP = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = binaries.KUBERNETES.removeprefix("v").split(".")


class Recipe(NamedTuple):
    """`beside` names files of other modules that belong to the program: they lie in the cache next to it."""

    module: str
    package: str
    flags: tuple[str, ...] = ("-ldflags=-s -w",)
    beside: tuple[tuple[str, str], ...] = ()


def _kubernetes(package: str) -> Recipe:
    stamps = {"gitVersion": binaries.KUBERNETES, "gitMajor": _MAJOR, "gitMinor": _MINOR}
    stamped = " ".join(f"-X {_STAMP}.{name}={value}" for name, value in stamps.items())
    return Recipe("tests/kubernetes", package, (f"-ldflags=-s -w {stamped}",))


def _containerd(name: str) -> Recipe:
    package = f"github.com/containerd/containerd/v2/cmd/{name}"
    return Recipe("tests/kubernetes/containerd", package, ("-ldflags=-s -w", "-tags=no_btrfs no_devmapper no_zfs"))


_MPI_OPERATOR = Recipe(
    "tests/kubernetes/mpi-operator",
    "imex-dra.io/tests/mpi-operator",
    beside=(("github.com/kubeflow/mpi-operator", "deploy/v2beta1/mpi-operator.yaml"),),
)

RECIPES = {
    "etcd": _kubernetes("go.etcd.io/etcd/server/v3"),
    **{name: _kubernetes(f"k8s.io/kubernetes/cmd/{name}") for name in binaries.BUILT if name.startswith("kube")},
    **{name: _containerd(name) for name in binaries.RUNTIME},
    "mpi-operator": _MPI_OPERATOR,
}


def build(names: Sequence[str] = binaries.BUILT) -> None:
    if binaries.missing(names):
        with _alone():
            for name in binaries.missing(names):
                _build(name, RECIPES[name])


def _build(name: str, recipe: Recipe) -> None:
    module = ROOT / recipe.module
    if not module.is_dir():
        raise Misconfigured(
            f"{name} is missing, and it can only be built in a source checkout: there is no {module}. "
            "Or name a directory with ready programs in KUBEBUILDER_ASSETS."
        )
    go = toolchain.find_go(module, ROOT / "requirements" / "go.txt")
    with _scratch(binaries.cache(name)) as scratch:
        Compilation(go, module, recipe, scratch / name).run()
        for of, path in recipe.beside:
            shutil.copyfile(_directory(go, module, of) / path, binaries.cache(name) / Path(path).name)
        (scratch / name).rename(binaries.cache(name) / name)


def _directory(go: Path, module: Path, of: str) -> Path:
    """Where Go keeps the sources of a module that was fetched for another."""
    words = [str(go), "list", "-m", "-f", "{{.Dir}}", of]
    done = subprocess.run(
        words, cwd=module, env=toolchain.environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Misconfigured(f"go does not find the sources of {of}: {done.stderr.strip()}")
    return Path(done.stdout.strip())


class Compilation:
    """`go list` tells how many packages there are, and fetches them; `go build -v` tells which are done."""

    def __init__(self, go: Path, module: Path, recipe: Recipe, output: Path) -> None:
        self._go = go
        self._module = module
        self._recipe = recipe
        self._output = output
        self._progress = Progress(f"building {output.name}")

    def run(self) -> None:
        packages = self._run("list", "-deps", self._recipe.package, state="{fetched} modules fetched")
        options = ["-v", "-trimpath", "-buildvcs=false", "-o", str(self._output), *self._recipe.flags]
        self._run("build", *options, self._recipe.package, state=f"{{packages}}/{packages} packages")
        self._progress.finish("done")

    def _run(self, verb: str, *words: str, state: str) -> int:
        """The number of packages that Go named."""
        log = self._output.with_suffix(f".{verb}.log")
        process = Process("go", [self._go, verb, *words], log=log, cwd=self._module, env=toolchain.environment())
        process.start()
        try:
            while not process.ended(within=0.5):
                self._progress.show(state.format(**_counted(log)))
        finally:
            process.stop()
        self._check(process, log)
        return _counted(log)["packages"]

    def _check(self, process: Process, log: Path) -> None:
        if process.exit_code:
            self._progress.finish("failed")
            last = log.read_text().splitlines()[-20:]
            raise Misconfigured("\n".join([f"go could not build {self._recipe.package}:", *last]))


def _counted(log: Path) -> dict[str, int]:
    lines = log.read_text().splitlines()
    fetched = sum(line.startswith("go: ") for line in lines)
    return {"fetched": fetched, "packages": len(lines) - fetched}


@contextmanager
def _alone() -> Iterator[None]:
    binaries.cache_root().mkdir(parents=True, exist_ok=True)
    with (binaries.cache_root() / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            click.echo("another build is at work: waiting for it", err=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """Beside the target, so that a rename is atomic; what a killed build left is removed."""
    target.mkdir(parents=True, exist_ok=True)
    for left_over in target.glob(".build-*"):
        shutil.rmtree(left_over)
    with tempfile.TemporaryDirectory(dir=target, prefix=".build-") as directory:
        yield Path(directory)


def main() -> int:
    try:
        build()
    except Misconfigured as error:
        click.echo(str(error), err=True)
        return 1
    except KeyboardInterrupt:
        click.echo("\nstopped; what is complete is kept, and the next `make kube` goes on from there", err=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
