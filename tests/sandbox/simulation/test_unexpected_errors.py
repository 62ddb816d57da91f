"""An error that nothing expects fails a seed, wherever it happens: the driver and the simulation catch many."""

import subprocess
import sys

import pytest

from tests.sandbox.simulation.broken import PARTS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", PARTS)
def test_an_unexpected_error_fails_the_seed(part: str) -> None:
    command = [sys.executable, "-m", "tests.sandbox.simulation.broken", part]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(("unexpected error: after", "a check failed itself: after")), run.stdout
    assert "TypeError: broken" in run.stdout
    assert run.stderr == ""
