"""One program that Go builds from a module, with progress."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes import toolchain
from imex_sandbox.kubernetes.progress import Progress
from imex_sandbox.process import Process

MODULES = Path(__file__).with_name("modules")


class Target(NamedTuple):
    """How to build one program.

    `extra_files` are pairs of a module and a path in it: files that are copied into the cache next to the program.
    `environment` is set in addition to that of the toolchain.
    """

    program: str
    module: str
    package: str
    flags: tuple[str, ...] = ("-ldflags=-s -w",)
    module_file: str = "go.mod"
    extra_files: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


class GoBuild:
    """`go list` downloads modules and counts the packages; `go build -v` prints each package that is done."""

    def __init__(self, target: Target, directory: Path) -> None:
        self._target = target
        self._module = MODULES / target.module
        self._go = toolchain.find_go(self._module / target.module_file, MODULES / "go.txt")
        self._module_file = () if target.module_file == "go.mod" else (f"-modfile={target.module_file}",)
        self._output = directory / target.program
        self._progress = Progress(f"building {target.program}")

    def run(self) -> None:
        """Must run in the main thread, as every `Process`."""
        packages = self._run("list", "-deps", state="{downloaded} modules downloaded")
        options = ["-v", "-trimpath", "-buildvcs=false", "-o", str(self._output), *self._target.flags]
        self._run("build", *options, state=f"{{packages}}/{packages} packages")
        self._progress.finish("done")

    def source_directory(self, dependency: str) -> Path:
        """Where Go keeps the downloaded source of a dependency of the module."""
        argv = [str(self._go), "list", "-m", *self._module_file, "-f", "{{.Dir}}", dependency]
        done = subprocess.run(
            argv, cwd=self._module, env=toolchain.environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Misconfigured(f"go cannot find the source of {dependency}: {done.stderr.strip()}")
        return Path(done.stdout.strip())

    def _run(self, verb: str, *options: str, state: str) -> int:
        """Returns the number of packages that Go printed."""
        log = self._output.with_suffix(f".{verb}.log")
        argv = [str(self._go), verb, *self._module_file, *options, self._target.package]
        process = Process("go", argv, log=log, cwd=self._module, env=self._environment())
        process.start()
        try:
            while not process.wait(within=0.5):
                self._progress.show(state.format(**_count(log)))
        finally:
            process.stop()
        self._check(process, log)
        return _count(log)["packages"]

    def _environment(self) -> Mapping[str, str]:
        return toolchain.environment() | dict(self._target.environment)

    def _check(self, process: Process, log: Path) -> None:
        if process.exit_code:
            self._progress.finish("failed")
            tail = log.read_text().splitlines()[-20:]
            raise Misconfigured("\n".join([f"go could not build {self._target.package}:", *tail]))


def _count(log: Path) -> dict[str, int]:
    lines = log.read_text().splitlines()
    downloaded = sum(line.startswith("go: ") for line in lines)
    return {"downloaded": downloaded, "packages": len(lines) - downloaded}
