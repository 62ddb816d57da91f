"""Completion in shells and in kubectl, and the plugin of kubectl. The installed programs are run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(sys.executable).parent


def run(program: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [PROGRAMS / program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_imex(shell: str) -> None:
    assert f"_IMEX_COMPLETE={shell}_complete" in run("imex", "completion", shell)


def test_a_shell_completes_commands_and_options() -> None:
    words = {"COMP_WORDS": "imex st", "COMP_CWORD": "1", "_IMEX_COMPLETE": "bash_complete"}
    assert run("imex", **words) == "plain,status\n"
    words = {"COMP_WORDS": "imex status --pa", "COMP_CWORD": "2", "_IMEX_COMPLETE": "bash_complete"}
    assert run("imex", **words) == "plain,--partition\n"


def completed(line: str) -> list[str]:
    number = len(line.split(" ")) - 1
    return run("imex", COMP_WORDS=line, COMP_CWORD=str(number), _IMEX_COMPLETE="bash_complete").splitlines()


def test_a_shell_completes_files_and_kinds() -> None:
    assert completed("imex lint job") == ["file,job"]
    assert completed("imex lint a.yaml job") == ["file,job"]
    assert completed("imex migrate job") == ["file,job"]
    assert completed("imex migrate ") == ["file,", "plain,cluster", "plain,files"]
    assert completed("imex migrate --write job") == ["file,job"]
    assert completed("imex migrate --w") == ["plain,--write"]
    assert completed("imex verify --from bun") == ["file,bun"]
    assert completed("imex explain ") == ["plain,pod", "plain,claim", "plain,computedomain", "plain,node"]
    assert completed("imex explain pod ") == [""]


def test_bash_completes_a_file() -> None:
    """As a user types it: the function that the script defines leaves it to bash."""
    script = """
        source <(imex completion bash)
        compopt() { echo compopt "$@"; }
        COMP_WORDS=(imex lint job); COMP_CWORD=2
        _imex_completion imex job lint
        echo "${#COMPREPLY[@]}"
    """
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "compopt -o default\n0\n"


def test_kubectl_completes_files() -> None:
    assert run("kubectl_complete-imex", "lint", "") == ":0\n"
    assert run("kubectl_complete-imex", "migrate", "job") == ":0\n"
    assert run("kubectl_complete-imex", "explain", "po") == "pod\n:4\n"


def test_kubectl_completes_the_plugin() -> None:
    assert run("kubectl_complete-imex", "ver").splitlines() == [
        "verify\tVerify that workloads have their channels.",
        "version\tPrint the version.",
        ":4",
    ]
    assert "--all-namespaces" in run("kubectl_complete-imex", "verify", "--all")


def test_kubectl_runs_the_plugin() -> None:
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    assert run("kubectl", "imex", "status", "--help", PATH=path).startswith("Usage: kubectl imex status")
