"""`imex fault` on the command line, on a cluster with real files and a real control socket."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from imex_dra.base.errors import Misconfigured
from imex_dra.cli import imex
from imex_sandbox.faults.kinds import KINDS, command_line
from imex_sandbox.faults.store import FaultStore
from tests.sandbox.faults.fakecluster import FakeCluster
from tests.waiting import until

SCRIPT = """
apiVersion: sandbox.imex-dra.io/v1
kind: Faults
steps:
- {fault: break-fabric, nodes: [r0-n01], for: 10ms}
- {fault: restart-kubelet, nodes: [r0-n02], after: 1s}
- {fault: kill-node, nodes: [r0-n00], for: 10ms}
"""


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(imex, ["fault", *arguments], catch_exceptions=False)


def fault(fake: FakeCluster, line: str) -> Result:
    return run(*shlex.split(line), f"--name={fake.paths.name}")


def test_list_shows_every_kind_with_an_example() -> None:
    shown = run("list").output
    assert all(f"imex fault {kind.example}" in shown for kind in KINDS.values())


@pytest.mark.parametrize("name", KINDS)
def test_the_help_of_every_kind_has_an_example(name: str) -> None:
    assert f"For example: imex fault {name}" in run(name, "--help").output


def test_the_help_explains_every_option_with_its_default() -> None:
    shown = run("throttle-api", "--help").output
    assert "The share of requests: 0.3 is three of ten.  [required]" in shown
    assert "Seconds in the Retry-After header.  [default: 1]" in shown


@pytest.mark.parametrize("name", KINDS)
def test_every_example_works(fake: FakeCluster, name: str) -> None:
    """On nodes that the fake cluster has, and without a time to wait for."""
    example = KINDS[name].example.replace("n03", "n01").replace("n04", "n02")
    line = example.partition(" --for")[0]
    assert "injected:" in fault(fake, line).output
    active = FaultStore(fake.paths.run).read()
    assert all(
        shlex.split(line) == shlex.split(command_line(entry.fault).replace("r0-*", "'r0-*'")) for entry in active
    )


def test_an_active_fault_is_listed_and_undone_by_its_number(fake: FakeCluster) -> None:
    assert "(to undo it: imex fault undo 1)" in fault(fake, "kill-node r0-n01").output
    assert "kill-node r0-n01" in fault(fake, "active").output
    assert fault(fake, "undo 1").output == "undone: kill-node r0-n01\n"
    assert fault(fake, "active").output == ""
    assert fake.requests == ["power-off r0-n01", "power-on r0-n01"]


def test_undo_all_undoes_every_active_fault(fake: FakeCluster) -> None:
    fault(fake, "kill-node r0-n01")
    fault(fake, "break-fabric r0-n02")
    assert len(fault(fake, "undo --all").output.splitlines()) == 2
    assert fault(fake, "undo --all").output == ""
    with pytest.raises(Misconfigured, match=r"give the numbers .* or --all"):
        fault(fake, "undo")


@pytest.mark.parametrize("line", ["--name {} kill-node r0-n01", "kill-node r0-n01 --name {}"])
def test_the_name_of_the_cluster_may_stand_before_or_after_the_kind(fake: FakeCluster, line: str) -> None:
    run(*line.format(fake.paths.name).split())
    assert fake.requests == ["power-off r0-n01"]


def test_the_name_of_the_cluster_may_come_from_the_environment(fake: FakeCluster) -> None:
    run("kill-node", "r0-n01", IMEX_NAME=fake.paths.name)
    assert fake.requests == ["power-off r0-n01"]


@pytest.mark.parametrize("line", ["--name {} active", "active --name {}", "--name nosuch active --name {}"])
def test_a_flag_takes_precedence_over_the_environment_and_the_last_flag_wins(fake: FakeCluster, line: str) -> None:
    assert run(*line.format(fake.paths.name).split(), IMEX_NAME="nosuch").output == ""


def test_a_fault_with_a_time_is_undone_after_it(fake: FakeCluster) -> None:
    shown = fault(fake, "kill-node r0-n01 --for 10ms").output
    assert [line.split(" s  ")[1] for line in shown.splitlines()] == [
        "injected: kill-node r0-n01 --for 10ms",
        "undone:   kill-node r0-n01 --for 10ms",
    ]
    assert fake.requests == ["power-off r0-n01", "power-on r0-n01"]


def test_a_script_runs_step_by_step(fake: FakeCluster, tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(SCRIPT)
    shown = fault(fake, str(path)).output
    assert [line.split(" s  ")[1].split()[:2] for line in shown.splitlines()] == [
        ["injected:", "break-fabric"],
        ["undone:", "break-fabric"],
        ["injected:", "restart-kubelet"],
        ["injected:", "kill-node"],
        ["undone:", "kill-node"],
    ]
    assert fake.requests == ["kill kubelet r0-n02", "start kubelet r0-n02", "power-off r0-n00", "power-on r0-n00"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "kill-node r7-n00",
            r"no node matches 'r7-n00': the cluster has r0-n00, r0-n01, r0-n02 - at `\$.nodes\[0\]`",
        ),
        ("kill-node r0-n01 --for soon", r"kill-node: .*- at `\$.for`"),
        ("fail-api --share 7", r"fail-api: Expected `float` <= 1.0 - at `\$.share`"),
        ("reload-driver r0-n01 --major big", r"reload-driver: Expected `int`, got `str` - at `\$.major`"),
        ("missing.yaml", r"missing.yaml cannot be read"),
    ],
)
def test_invalid_arguments_are_explained_and_change_nothing(fake: FakeCluster, line: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        fault(fake, line)
    assert fake.requests == []


def test_a_script_with_one_invalid_step_changes_nothing(fake: FakeCluster, tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(SCRIPT.replace("nodes: [r0-n00]", "nodes: [r0-n77]"))
    with pytest.raises(Misconfigured, match=r"no node matches 'r0-n77'.* at `\$.steps\[2\].nodes\[0\]`"):
        fault(fake, str(path))
    assert fake.requests == []


def test_without_a_cluster_the_error_says_how_to_start_one() -> None:
    with pytest.raises(Misconfigured, match="start it with `imex up --name nosuch`"):
        run("active", "--name=nosuch")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_undoes_a_fault_with_a_time(fake: FakeCluster, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "imex_dra.cli", "fault", "kill-node", "r0-n01", "--for=1h"]
    process = subprocess.Popen([*command, f"--name={fake.paths.name}"], stdout=subprocess.PIPE, text=True)
    until(lambda: fake.requests == ["power-off r0-n01"])
    process.send_signal(number)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "undone:   kill-node r0-n01" in shown
    assert fake.requests == ["power-off r0-n01", "power-on r0-n01"]
