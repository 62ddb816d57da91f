"""nvidia-imex and nvidia-imex-ctl run from a driver root, with chroot and mounts that only they see."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.daemon.supervisor import Supervisor, chroot_command
from tests.daemon.driver_root import HOSTS
from tests.paths import ROOT

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


@pytest.fixture
def directory() -> Iterator[Path]:
    """With a path that is short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="imex-", dir="/tmp") as path:
        yield Path(path)


def test_two_nodes_connect_with_programs_of_their_driver_roots(directory: Path) -> None:
    command = [*UNSHARE, sys.executable, "-m", "tests.daemon.driver_root", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    observed = json.loads(done.stdout.splitlines()[-1])
    (config,) = (directory / "n0/imex/configs").glob("*/config.cfg")
    assert observed == {
        "same pid": True,
        "root": True,
        "arguments": ["/usr/bin/nvidia-imex", "-c", str(config)],
        "hosts outside": HOSTS,
        "mounts outside": False,
        "keys outside": [],
        "persistent directory": True,
    }


def run(directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    """From a host without any driver."""
    host = directory / "host"
    for name in ("etc", "imex"):
        (host / name).mkdir(parents=True, exist_ok=True)
    (directory / "imex").mkdir()
    (directory / "imex/hosts").touch()
    Supervisor(directory / "imex").write_driver_root("/")
    return call(directory, program)


def call(directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    command = [*UNSHARE, *chroot_command(directory / "imex", directory / "host", program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_missing_program_is_named_with_its_driver_root(directory: Path) -> None:
    done = run(directory, "nvidia-imex")
    assert (done.returncode, done.stderr) == (127, "there is no nvidia-imex in the driver root /\n")
    assert list((directory / "host/etc").iterdir()) == []


def test_before_imex_node_has_found_the_driver_nothing_is_run(directory: Path) -> None:
    (directory / "imex").mkdir()
    done = call(directory, "nvidia-imex")
    assert done.returncode == 1
    assert done.stderr == "imex node has not said yet where the GPU driver is: check that it runs\n"
