"""The real programs under random faults, for a fixed set of seeds. `make simulate` runs more of them."""

import os
import subprocess
import sys

import pytest

SEEDS = range(1, 5)


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As a process of its own: the order of sets depends on the hash seed of the interpreter."""
    command = [sys.executable, "-m", "imex_sandbox.simulation", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_fault_breaks_a_promise(seed: int) -> None:
    run = simulate("--seed", str(seed), "--hours", "3")
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]


def test_a_seed_is_replayed_exactly() -> None:
    stories = [simulate("--seed", "1", "--hours", "2", "--story").stdout for _ in range(2)]
    operations = [[line for line in story.splitlines() if line.startswith(" ")] for story in stories]
    assert operations[0] == operations[1]
    assert len(operations[0]) > 20
