"""Containers find tools on their PATH that their image would provide, and stand-ins replace their commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from imex_dra import __version__
from imex_sandbox.kubelet import containerinit
from imex_sandbox.kubelet.config import StandIn
from imex_sandbox.kubelet.toolbox import (
    PAUSE,
    RANK_SERVER,
    Toolbox,
    container_argv,
    hidden,
    search_path,
)
from imex_sandbox.kubelet.views.pod import Container
from imex_sandbox.mpi.rankprograms import DIRECTORY


def test_tools_run_with_the_python_of_the_kubelet(tmp_path: Path) -> None:
    Toolbox(tmp_path / "with space").install()
    done = subprocess.run(
        [tmp_path / "with space" / "imex", "version"], env={}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"imex-dra {__version__}\n"


@pytest.mark.parametrize("word", ["allreduce", "bandwidth"])
def test_programs_of_ranks_start_without_the_rest_of_the_command_line(tmp_path: Path, word: str) -> None:
    Toolbox(tmp_path).install()
    environment = {"PYTHONVERBOSE": "1"}  # names every imported module
    done = subprocess.run(
        [tmp_path / "imex", word, "--help"], env=environment, capture_output=True, text=True, check=True
    )
    assert f"usage: imex {word}" in done.stdout
    assert "import 'click'" not in done.stderr


@pytest.mark.parametrize("tool", ["mpirun", "mpiexec", "all_reduce_perf", "nvbandwidth", RANK_SERVER])
def test_tools_of_an_mpi_image_are_installed(tmp_path: Path, tool: str) -> None:
    Toolbox(tmp_path).install()
    assert (tmp_path / tool).stat().st_mode & 0o111
    module = (tmp_path / tool).read_text().split(" -m ")[1].split()[0]
    assert subprocess.run([sys.executable, "-c", f"import {module}"], check=False).returncode == 0


def test_tools_are_first_on_the_path_and_mounted_read_only(tmp_path: Path) -> None:
    assert search_path("/usr/bin:/bin") == f"{DIRECTORY}:/usr/bin:/bin"
    mount = Toolbox(tmp_path).mounts[0]
    assert (mount.source, mount.target, mount.read_only) == (tmp_path, DIRECTORY, True)


def test_only_directories_that_a_container_does_not_share_with_the_host_are_mounted() -> None:
    paths = (Path("/tmp/clone/.venv"), Path("/usr"), Path("/tmp/clone"), Path("/run/user/0/src"), Path("/tmpfs"))
    assert hidden(paths) == [Path("/run/user/0/src"), Path("/tmp/clone")]


@pytest.mark.parametrize(
    "command",
    [
        ("/usr/sbin/sshd", "-De"),
        ("/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"),
        ("/bin/bash", "-c", "mkdir -p /run/sshd && /usr/sbin/sshd -De"),
    ],
)
def test_the_rank_server_replaces_sshd(command: tuple[str, ...]) -> None:
    assert container_argv(Container("worker", command=command)) == (RANK_SERVER,)


def test_a_users_stand_in_wins_over_the_rank_server() -> None:
    sshd = Container("worker", command=("/usr/sbin/sshd", "-De"))
    assert container_argv(sshd, [StandIn(("own",), command="*sshd*")]) == ("own",)


def test_other_containers_run_their_command_or_pause() -> None:
    assert container_argv(Container("c", command=("ls", "/usr/sbin/sshd"))) == ("ls", "/usr/sbin/sshd")
    assert container_argv(Container("c")) == PAUSE


def test_a_program_that_only_an_image_has_at_its_path_is_found_in_the_toolbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert containerinit.TOOLBOX == DIRECTORY
    monkeypatch.setattr(containerinit, "TOOLBOX", str(tmp_path))
    Toolbox(tmp_path).install()
    found = containerinit.find("/opt/nccl_tests/build/all_reduce_perf", "/usr/bin")
    assert found == str(tmp_path / "all_reduce_perf")


def test_a_missing_command_names_the_rule_to_add() -> None:
    with pytest.raises(OSError, match="no such file or directory") as missing:
        containerinit.find("/opt/amazon/fi_info", "/usr/bin")
    assert 'such as {command: "*fi_info*", argv: [sleep, infinity]}' in str(missing.value)
