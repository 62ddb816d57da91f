"""`imex node` that is killed at any call: the next one ends in the right state, without a needless restart."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.crash_points import node_joins, node_leaves, others_change, own_index_changes
from tests.paths import ROOT


@pytest.mark.parametrize(
    ("scenario", "at_least"),
    [(others_change, 3), (own_index_changes, 11), (node_joins, 10), (node_leaves, 2)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_killed_before_any_change_of_the_directory(scenario: object, at_least: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.daemon.crash_points", getattr(scenario, "__name__", ""), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    killed = int(done.stdout.splitlines()[-1])
    assert killed >= at_least, "fewer calls than the operation must make: crash_points.CALLS is incomplete"
