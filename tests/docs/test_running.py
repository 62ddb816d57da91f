"""Every command in the documentation is executed, or a comment says why it is not.

Here: those that need no cluster. `tests/docs/racks` executes the others, on simulated racks.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from imex_dra.cli import imex
from imex_dra.diagnose.bundle import pack
from imex_sandbox import racks
from imex_sandbox.faults import script
from imex_sandbox.kubelet.config import load_stand_ins
from tests.diagnose.breakings import BREAKINGS
from tests.diagnose.healthy import Broken
from tests.docs.pages import ALL_BLOCKS, Block, command_lines
from tests.docs.running import FOR_LAPTOPS, MARKS, ON_OBJECTS, RUN_PAGES, fits, has_commands, is_run, steps
from tests.paths import ROOT

PROGRAMS = {"export", "imex", "kubectl"}
"""That blocks may use which are executed. Others need what a test does not have: images, a chart, hardware."""


def test_a_comment_above_a_block_has_a_meaning() -> None:
    assert [f"{block}: {mark}" for block in ALL_BLOCKS for mark in block.marks if mark not in MARKS] == []


def test_a_block_that_is_not_executed_has_a_reason() -> None:
    marked = [block for block in ALL_BLOCKS if "not run" in block.marks]
    assert [str(block) for block in marked if len(block.marks["not run"].split()) < 2] == []
    assert [str(block) for block in marked if not has_commands(block) and block.kind != "yaml"] == []


def test_a_test_that_runs_a_block_instead_exists() -> None:
    reasons = [(block, word) for block in ALL_BLOCKS for word in block.marks.get("not run", "").split()]
    named = [(block, word.rstrip(",;")) for block, word in reasons if word.startswith(("tests/", "docs/"))]
    assert [f"{block}: {word}" for block, word in named if not (ROOT / word).exists()] == []
    assert len(named) > 10


def test_a_block_that_is_executed_has_commands_that_can_be() -> None:
    commands = [(block, line) for block in ALL_BLOCKS if is_run(block) for line in command_lines(block)]
    assert [f"{block}: {line}" for block, line in commands if line.split()[0] not in PROGRAMS] == []
    assert [str(block) for block in ALL_BLOCKS if is_run(block) and not list(command_lines(block))] == []
    assert len(commands) > 60
    assert len(RUN_PAGES) > 8
    assert set(FOR_LAPTOPS) <= set(RUN_PAGES)


@pytest.mark.parametrize("block", ON_OBJECTS, ids=str)
def test_a_screen_of_saved_objects_is_what_the_command_prints(block: Block, tmp_path: Path) -> None:
    broken = Broken()
    BREAKINGS[block.marks["objects"]](broken)
    file = tmp_path / "bundle.tar.gz"
    file.write_bytes(pack(broken.snapshot(), {}))
    for step in steps(block):
        words = step.command.split()
        assert words[0] == "imex"
        done = CliRunner().invoke(imex, [*words[1:], f"--from={file}"], prog_name="imex")
        assert step.may_exit_with(done.exit_code), done.output
        assert fits(step.expected, done.stdout), done.stdout


@pytest.mark.parametrize(
    "block", [block for block in ALL_BLOCKS if "sandbox.imex-dra.io/v1" in block.text], ids=str
)
def test_a_file_of_the_sandbox_is_valid(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(block.text)
    nodes = {f"r{rack}-n{node:02}": f"{rack}.1" for rack in range(2) for node in range(18)}
    loaders: dict[str, Callable[[Path], object]] = {
        "Cluster": racks.load,
        "Faults": partial(script.load, nodes=nodes),
        "StandIns": load_stand_ins,
    }
    assert loaders[yaml.safe_load(block.text)["kind"]](file)


def test_output_fits_with_gaps_only_where_the_page_has_them() -> None:
    assert fits("a  b\n…\nthe end\n", "a b\n1\n2\nthe   end\n")
    assert fits("…\nthe end\n", "the end\n")
    assert fits("worker-…-imex is here\n", "worker-12-imex is here\n")
    assert not fits("a b\nthe end\n", "a b\n1\nthe end\n")
    assert not fits("a b\n", "a b\nmore\n")
    assert not fits("a b (c)\n", "a b c\n")


def test_a_prompt_starts_a_command_and_its_output() -> None:
    block = Block(Path("x.md"), 1, "console", "$ imex status \\\n  --watch\n1\n2\n$ kubectl apply -f x\n\n", {})
    first, second = steps(block)
    assert (first.command, first.expected, first.reads) == ("imex status   --watch", "1\n2\n", True)
    assert (second.command, second.expected, second.reads) == ("kubectl apply -f x", "", False)
    assert (first.may_exit_with(1), second.may_exit_with(1)) == (True, False)


def test_log_lines_of_kubectl_are_no_output() -> None:
    line = 'I1118 09:15:16.648935    4219 reflector.go:664] "watch ended with error" err="context canceled"\n'
    assert fits("pod/a condition met\nb…\n", f"pod/a condition met\n{line}b condition met\n")
    assert not fits("pod/a condition met\n", "pod/a condition met\nError: reflector.go:664] no\n")
