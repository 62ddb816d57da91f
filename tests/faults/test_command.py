"""`imex fault` as a person uses it: on a cluster whose files and socket are real."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from imex_dra.base.errors import Misconfigured
from imex_dra.cli import imex
from imex_dra.sandbox.faults.kinds import KINDS, words
from imex_dra.sandbox.faults.record import Record
from tests.faults.paper import Paper
from tests.softimex.rack import eventually

SCRIPT = """
apiVersion: sandbox.imex-dra.io/v1
kind: Faults
steps:
- {fault: break-fabric, nodes: [r0-n01], for: 10ms}
- {fault: restart-kubelet, nodes: [r0-n02], after: 1s}
- {fault: kill-node, nodes: [r0-n00], for: 10ms}
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(imex, ["fault", *arguments], catch_exceptions=False)


def fault(paper: Paper, line: str) -> Result:
    return run(*shlex.split(line), f"--name={paper.places.name}")


def test_list_shows_every_kind_with_a_sentence_and_an_example() -> None:
    shown = run("list").output
    assert all(f"imex fault {kind.example}" in shown for kind in KINDS.values())


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_help(name: str) -> None:
    assert f"For example: imex fault {name}" in run(name, "--help").output


@pytest.mark.parametrize("name", KINDS)
def test_every_example_can_be_typed(paper: Paper, name: str) -> None:
    """With nodes that this small cluster has, and no time to wait for."""
    example = KINDS[name].example.replace("n03", "n01").replace("n04", "n02")
    line = example.partition(" --for")[0]
    assert "begun:" in fault(paper, line).output
    standing = Record(paper.places.run).read()
    assert all(
        shlex.split(line) == shlex.split(words(entry.fault).replace("r0-*", "'r0-*'")) for entry in standing
    )


def test_one_that_stands_is_listed_and_undone_by_its_number(paper: Paper) -> None:
    assert "(until: imex fault undo 1)" in fault(paper, "kill-node r0-n01").output
    assert "kill-node r0-n01" in fault(paper, "standing").output
    assert fault(paper, "undo 1").output == "undone: kill-node r0-n01\n"
    assert fault(paper, "standing").output == ""
    assert paper.requests == ["power-off r0-n01", "power-on r0-n01"]


def test_all_are_undone_at_once(paper: Paper) -> None:
    fault(paper, "kill-node r0-n01")
    fault(paper, "break-fabric r0-n02")
    assert len(fault(paper, "undo --all").output.splitlines()) == 2
    assert "nothing" not in fault(paper, "undo --all").output
    with pytest.raises(Misconfigured, match="say which to undo, or --all"):
        fault(paper, "undo")


def test_one_with_a_time_is_undone_by_itself(paper: Paper) -> None:
    shown = fault(paper, "kill-node r0-n01 --for 10ms").output
    assert [line.split(" s  ")[1] for line in shown.splitlines()] == [
        "begun:  kill-node r0-n01 --for 10ms",
        "undone: kill-node r0-n01 --for 10ms",
    ]
    assert paper.requests == ["power-off r0-n01", "power-on r0-n01"]


def test_a_script_is_played(paper: Paper, tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(SCRIPT)
    shown = fault(paper, str(path)).output
    assert [line.split(" s  ")[1].split()[:2] for line in shown.splitlines()] == [
        ["begun:", "break-fabric"],
        ["undone:", "break-fabric"],
        ["begun:", "restart-kubelet"],
        ["begun:", "kill-node"],
        ["undone:", "kill-node"],
    ]
    assert paper.requests == ["kill kubelet r0-n02", "start kubelet r0-n02", "power-off r0-n00", "power-on r0-n00"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "kill-node r7-n00",
            r"no node 'r7-n00' in this cluster: it has r0-n00, r0-n01, r0-n02 - at `\$.nodes\[0\]`",
        ),
        ("kill-node r0-n01 --for soon", r"kill-node: .*- at `\$.for`"),
        ("fail-api --share 7", r"fail-api: Expected `float` <= 1.0 - at `\$.share`"),
        ("reload-driver r0-n01 --major big", r"reload-driver: Expected `int`, got `str` - at `\$.major`"),
        ("missing.yaml", r"missing.yaml can't be read"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_happens(paper: Paper, line: str, words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        fault(paper, line)
    assert paper.requests == []


def test_a_script_with_one_bad_step_does_nothing_at_all(paper: Paper, tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(SCRIPT.replace("nodes: [r0-n00]", "nodes: [r0-n77]"))
    with pytest.raises(Misconfigured, match=r"no node 'r0-n77'.* at `\$.steps\[2\].nodes\[0\]`"):
        fault(paper, str(path))
    assert paper.requests == []


def test_without_a_cluster_it_says_how_to_get_one() -> None:
    with pytest.raises(Misconfigured, match="imex up --name nosuch"):
        run("standing", "--name=nosuch")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_undoes_what_has_a_time(paper: Paper, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "imex_dra.cli", "fault", "kill-node", "r0-n01", "--for=1h"]
    process = subprocess.Popen([*command, f"--name={paper.places.name}"], stdout=subprocess.PIPE, text=True)
    eventually(lambda: paper.requests == ["power-off r0-n01"], within=60)
    process.send_signal(number)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "undone: kill-node r0-n01" in shown
    assert paper.requests == ["power-off r0-n01", "power-on r0-n01"]
