"""Sentences of the driver that pages quote."""

from imex_dra.api import nodereasons
from tests.paths import ROOT


def test_the_failure_in_the_readme_is_what_the_driver_says() -> None:
    problem = nodereasons.supervisor_not_running()
    failure = nodereasons.daemon_not_ready(node="a1", state="UNAVAILABLE", problem=problem)
    lines = (ROOT / "README.md").read_text().splitlines()
    quoted = " ".join(line.removeprefix("> ") for line in lines if line.startswith("> "))
    assert quoted == failure.message(waited=40)
