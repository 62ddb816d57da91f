"""What a simulated container finds on its PATH, whatever its image would have had."""

import subprocess
import sys
from pathlib import Path

import pytest

from imex_dra import __version__
from imex_dra.sandbox.kubelet.standins import PAUSE, Rule, argv
from imex_dra.sandbox.kubelet.toolbox import DIRECTORY, RANK_SERVER, Toolbox, hidden, path
from imex_dra.sandbox.kubelet.views.container import Container


def test_its_tools_run_with_this_very_python(tmp_path: Path) -> None:
    Toolbox(tmp_path / "a place").fill()
    done = subprocess.run(
        [tmp_path / "a place" / "imex", "version"], env={}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"imex-dra {__version__}\n"


@pytest.mark.parametrize("tool", ["mpirun", "mpiexec", "all_reduce_perf", "nvbandwidth", RANK_SERVER])
def test_what_an_mpi_image_has_is_there(tmp_path: Path, tool: str) -> None:
    Toolbox(tmp_path).fill()
    assert (tmp_path / tool).stat().st_mode & 0o111
    module = (tmp_path / tool).read_text().split(" -m ")[1].split()[0]
    assert subprocess.run([sys.executable, "-c", f"import {module}"], check=False).returncode == 0


def test_they_come_first_and_are_mounted_read_only(tmp_path: Path) -> None:
    assert path("/usr/bin:/bin") == f"{DIRECTORY}:/usr/bin:/bin"
    first = Toolbox(tmp_path).binds[0]
    assert (first.source, first.target, first.read_only) == (tmp_path, DIRECTORY, True)


def test_a_python_that_a_container_would_not_see_is_mounted_too() -> None:
    homes = (Path("/tmp/clone/.venv"), Path("/usr"), Path("/tmp/clone"), Path("/run/user/0/src"), Path("/tmpfs"))
    assert hidden(homes) == [Path("/run/user/0/src"), Path("/tmp/clone")]


@pytest.mark.parametrize(
    "command",
    [
        ("/usr/sbin/sshd", "-De"),
        ("/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"),
        ("/bin/bash", "-c", "mkdir -p /run/sshd && /usr/sbin/sshd -De"),
    ],
)
def test_the_rank_server_stands_for_sshd(command: tuple[str, ...]) -> None:
    assert argv(Container("worker", command=command)) == (RANK_SERVER,)


def test_other_commands_and_a_users_own_rules_are_left_alone() -> None:
    sshd = Container("worker", command=("/usr/sbin/sshd", "-De"))
    assert argv(sshd, [Rule(("own",), command="*sshd*")]) == ("own",)
    assert argv(Container("c", command=("ls", "/usr/sbin/sshd"))) == ("ls", "/usr/sbin/sshd")
    assert argv(Container("c")) == PAUSE
