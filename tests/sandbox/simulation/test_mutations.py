"""The simulation notices a driver that lacks a safety condition. `make mutate` tries all of them."""

import os
import subprocess
import sys

import pytest

from imex_sandbox.simulation.mutations import MUTATIONS, REGRESSIONS, UNNOTICED, Mutation


@pytest.mark.parametrize("mutation", [*MUTATIONS, *UNNOTICED, *REGRESSIONS], ids=lambda mutation: mutation.name)
def test_what_a_mutation_replaces_exists(mutation: Mutation) -> None:
    owner, name = mutation.target()
    assert callable(getattr(owner, name))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mutation", "seen_as"),
    [
        ("a channel is reused although a node holds it", "channel forgotten"),
        ("a channel that is not assigned yet is reported as exhaustion", "wrong reason"),
    ],
)
def test_a_driver_without_a_safety_condition_fails(mutation: str, seen_as: str) -> None:
    command = [sys.executable, "-m", "imex_sandbox.simulation", "--seed", "1", "--hours", "2", "--pause", "40"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    run = subprocess.run(
        [*command, "--mutation", mutation], capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert seen_as in run.stdout
    assert "shrink: " in run.stdout
