"""The `imex` command line: help, flags, environment variables, errors."""

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from imex_dra import __version__
from imex_dra.cli import imex

PROGRAMS = ["controller", "node", "webhook"]


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    """Exit code and output."""
    result = CliRunner().invoke(imex, arguments, prog_name="imex", env={"KUBECONFIG": None, **environment})
    return result.exit_code, result.output


def test_help_lists_every_command() -> None:
    code, text = run("--help")
    assert code == 0
    listed = set(re.findall(r"^  (\S+)", text.partition("Commands:")[2], re.MULTILINE))
    assert {*PROGRAMS, "version"} <= listed
    assert set(imex.list_commands(imex.make_context("imex", ["version"]))) == listed


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", PROGRAMS)
def test_every_program_has_help_for_its_flags(command: str, flag: str) -> None:
    code, text = run(command, flag)
    assert code == 0
    assert f"Usage: imex {command}" in text
    assert "--log-level" in text


LARGE = ("asyncio", "grpc", "httpx2", "lightkube", "msgspec", "yaml")
SCRIPT = f"""
import sys
from imex_dra.cli import imex
imex(["--help"], standalone_mode=False)
print("loaded:", [name for name in {LARGE} if name in sys.modules])
"""


def test_help_does_not_import_large_modules() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.endswith("loaded: []\n")


def test_version_prints_the_version() -> None:
    assert run("version") == (0, f"imex-dra {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["contoller"], "No such command 'contoller'"),
        (["node", "--no-such-flag"], "No such option '--no-such-flag'"),
        (["node", "--address", "10.0.0.1"], "Missing option '--node-name'"),
        (
            ["node", "--node-name", "n1", "--address-family", "ipx"],
            "Invalid value for '--address-family': 'ipx' is not one of 'ipv4', 'ipv6'",
        ),
        (
            ["node", "--node-name", "n1", "--address", "10.0.0.1", "--prepare-deadline", "soon"],
            "Invalid value for '--prepare-deadline': 'soon' is not a valid float",
        ),
        (
            ["node", "--node-name", "n1", "--address", "10.0.0.1", "--max-claims", "129"],
            "Invalid value for '--max-claims': 129 is not in the range 1<=x<=128",
        ),
        (
            ["node", "--node-name", "n1", "--address", "10.0.0.1", "--hardware", "amd"],
            "unknown hardware type 'amd'; known types: nvml, simulated",
        ),
        (
            ["node", "--node-name", "n1", "--address", "10.0.0.1", "--imex-network", "pod"],
            "--imex-network pod: the daemon pod has the address",
        ),
        (
            ["node", "--node-name", "n1", "--imex", "host-managed", "--imex-config", "config.cfg"],
            "--imex-config config.cfg is not an absolute path on the host",
        ),
        (
            ["node", "--node-name", "n1", "--address", "10.0.0.1", "--driver-root", "run/nvidia/driver"],
            "--driver-root run/nvidia/driver is not an absolute path on the host",
        ),
        (
            [
                "node",
                "--node-name",
                "n1",
                "--address",
                "10.0.0.1",
                "--hardware",
                "simulated:/x",
                "--driver-root",
                "/",
            ],
            "--driver-root needs --hardware nvml: simulated hardware has no driver root",
        ),
        (
            ["node", "--node-name", "n1", "--address", "10.0.0.1", "--hardware", "simulated"],
            "simulated needs a directory: --hardware simulated:<directory>",
        ),
        (["node", "--imex-dir", "/etc/hostname"], "Directory '/etc/hostname' is a file"),
        (["controller", "--log-level", "loud"], "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
        (["controller", "--kubeconfig", "/no/such/file"], "File '/no/such/file' does not exist"),
        (["controller", "stray"], "Got unexpected extra argument (stray)"),
    ],
)
def test_an_invalid_command_line_is_rejected_with_the_usage(arguments: list[str], message: str) -> None:
    code, text = run(*arguments)
    assert code == 2
    assert message in text.replace("\n", " ")
    assert text.startswith("Usage: imex")


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_flag_except_hardware_can_be_set_by_an_environment_variable(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = imex.get_command(imex.make_context("imex", ["version"]), program)
    assert command is not None
    names = {option.name for option in command.params if option.name}
    for name in names:
        monkeypatch.setenv(f"IMEX_{name.upper()}", "value")
    context = click.Context(command, info_name=program, **command.context_settings)
    found = {option.name for option in command.params if option.value_from_envvar(context) == "value"}
    assert found == names - {"hardware"}


def test_required_flags_can_come_from_the_environment() -> None:
    code, text = run("node", IMEX_NODE_NAME="n1", IMEX_ADDRESS="10.0.0.1", IMEX_LOG_LEVEL="loud")
    assert code == 2
    assert "Missing" not in text
    assert "Invalid value for '--log-level': 'loud' is not one of" in text


def test_no_environment_variable_switches_a_node_to_simulated_hardware() -> None:
    code, text = run(
        "node", "--log-level", "loud", IMEX_NODE_NAME="n1", IMEX_ADDRESS="10.0.0.1", IMEX_HARDWARE="no-such-type"
    )
    assert code == 2
    assert "no-such-type" not in text


def test_a_flag_has_precedence_over_its_environment_variable() -> None:
    code, text = run("controller", "--log-level", "quiet", IMEX_LOG_LEVEL="loud")
    assert code == 2
    assert "'quiet' is not one of" in text


def imex_process(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "imex_dra.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_program_that_cannot_start_prints_one_line_and_exits_with_1() -> None:
    done = imex_process("controller", KUBECONFIG="/no/such/file")
    assert done.returncode == 1
    assert done.stderr == (
        "imex: KUBECONFIG is /no/such/file, and there is no such file: export KUBECONFIG, which `imex up` prints,"
        " or use --kubeconfig FILE\n"
    )
