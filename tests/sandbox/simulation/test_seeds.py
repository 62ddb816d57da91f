"""The real programs under random faults, for a fixed set of seeds. `make simulate` runs more of them."""

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(600)


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As a process of its own: the order of sets depends on the hash seed of the interpreter."""
    command = [sys.executable, "-m", "imex_sandbox.simulation", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_no_fault_breaks_an_invariant() -> None:
    # In one run: the start of a process takes as long as some of the seeds.
    run = simulate("--first", "1", "--seeds", "6", "--hours", "3", "--pause", "60", "--jobs", "2")
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert "6 seeds" in run.stdout


@pytest.mark.parametrize(
    ("bug", "seed", "hours", "seen_as"),
    [
        (
            "a node without its partition says that it is not a member",
            "37",
            "2",
            "wrong reason: .*is not a member of",
        ),
        ("a prepare error has the causes of all partitions", "33", "0.7", "wrong reason: .*has no free channel"),
        ("members that agree are refuted by one old report", "40", "2", "channel forgotten: .* on r0-n00"),
    ],
)
def test_a_bug_that_a_seed_has_found_is_fixed(bug: str, seed: str, hours: str, seen_as: str) -> None:
    """With the bug put back the seed fails, so that it is known to find it still."""
    story = ("--seed", seed, "--hours", hours, "--pause", "40")
    run = simulate(*story)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    broken = simulate(*story, "--mutation", bug)
    assert broken.returncode == 1, broken.stdout[-2000:] + broken.stderr[-2000:]
    assert re.search(seen_as, broken.stdout), broken.stdout[-2000:]


def test_a_seed_runs_in_the_same_way_alone_and_after_another_one() -> None:
    options = ("--hours", "1.5", "--pause", "40")
    alone = simulate("--seed", "25", *options)
    after_another = simulate("--first", "24", "--seeds", "2", "--jobs", "1", *options)
    runs = [
        re.search(r"seed 25: (.*) operations, (.*) events, .* events/s, ([0-9a-f]{16}): ok", run.stdout)
        for run in (alone, after_another)
    ]
    assert runs[0] is not None, alone.stdout
    assert runs[1] is not None, after_another.stdout
    assert runs[0].groups() == runs[1].groups()
    assert "0 operations" not in runs[0][0]
