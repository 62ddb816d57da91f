"""The `imex` command: what it lists, what it refuses and in which words, and where flags may come from."""

import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from imex_dra import __version__
from imex_dra.cli import imex

PROGRAMS = ["controller", "node", "daemon"]


def run(*words: str, **environment: str) -> tuple[int, str]:
    """Exit code, and everything that was said."""
    result = CliRunner().invoke(imex, words, prog_name="imex", env={"KUBECONFIG": None, **environment})
    return result.exit_code, result.output


def test_help_lists_every_command_with_one_line() -> None:
    code, text = run("--help")
    assert code == 0
    listed = set(re.findall(r"^  (\S+)", text.partition("Commands:")[2], re.MULTILINE))
    assert {*PROGRAMS, "version"} <= listed
    assert set(imex.list_commands(imex.make_context("imex", ["version"]))) == listed


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", PROGRAMS)
def test_every_program_has_help_with_its_flags(command: str, flag: str) -> None:
    code, text = run(command, flag)
    assert code == 0
    assert f"Usage: imex {command}" in text
    assert "--log-level" in text


HEAVY = ("asyncio", "grpc", "httpx2", "lightkube", "msgspec", "yaml")
LOOK = f"""
import sys
from imex_dra.cli import imex
imex(["--help"], standalone_mode=False)
print("loaded:", [name for name in {HEAVY} if name in sys.modules])
"""


def test_help_is_quick_because_it_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.endswith("loaded: []\n")


def test_version() -> None:
    assert run("version") == (0, f"imex-dra {__version__}\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["contoller"], "No such command 'contoller'"),
        (["node", "--no-such-flag"], "No such option '--no-such-flag'"),
        (["node", "--address", "10.0.0.1"], "Missing option '--node-name'"),
        (["node", "--node-name", "n1"], "Missing option '--address'"),
        (
            ["node", "--node-name", "n1", "--address", "10.0.0.1", "--prepare-deadline", "soon"],
            "Invalid value for '--prepare-deadline': 'soon' is not a valid float",
        ),
        (["daemon"], "Missing option '--node-root'"),
        (["daemon", "--node-root", "/etc/hostname"], "Directory '/etc/hostname' is a file"),
        (["controller", "--log-level", "loud"], "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
        (["controller", "--kubeconfig", "/no/such/file"], "File '/no/such/file' does not exist"),
        (["controller", "stray"], "Got unexpected extra argument (stray)"),
    ],
)
def test_what_is_wrong_with_a_flag_is_said_with_the_usage(words: list[str], complaint: str) -> None:
    code, text = run(*words)
    assert code == 2
    assert complaint in text.replace("\n", " ")
    assert text.startswith("Usage: imex")


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ("controller", {"IMEX_NAMESPACE": "elsewhere"}),
        ("node", {"IMEX_NODE_NAME": "n1", "IMEX_ADDRESS": "10.0.0.1", "IMEX_NODE_ROOT": "/tmp"}),
        ("daemon", {"IMEX_NODE_ROOT": "/tmp", "IMEX_IMEX_CTL": "nvidia-imex-ctl"}),
    ],
)
def test_each_flag_has_a_twin_in_the_environment_called_imex_and_its_name(
    command: str, environment: dict[str, str]
) -> None:
    """Every flag that is required comes from the environment, so that only the wrong one is complained about."""
    code, text = run(command, **environment, IMEX_LOG_LEVEL="loud")
    assert code == 2
    assert "Missing" not in text
    assert "Invalid value for '--log-level': 'loud' is not one of" in text


def test_a_flag_wins_over_its_twin() -> None:
    code, text = run("controller", "--log-level", "quiet", IMEX_LOG_LEVEL="loud")
    assert code == 2
    assert "'quiet' is not one of" in text


def imex_process(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "imex_dra.cli", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_program_that_can_t_go_on_says_why_in_one_line_and_ends_with_1() -> None:
    done = imex_process("controller", KUBECONFIG="/no/such/file")
    assert done.returncode == 1
    assert done.stderr == (
        "imex: no usable cluster configuration in the pod's service account or KUBECONFIG: Configuration file"
        " /no/such/file not found\n"
    )
