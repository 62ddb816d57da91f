"""A program that ends is started again: at once almost, then less and less often."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.sandbox.cluster.keeper import FORGIVEN_AFTER, Keeper
from imex_dra.sandbox.process import Process


class Trial:
    """A program that ends when it is told to, and time that passes when it is told to."""

    def __init__(self, log: Path) -> None:
        self.now = 100.0
        self.process = Process("trial", ["sleep", "600"], log=log)
        self.process.start()
        self.keeper = Keeper(self.process, lambda: self.now)

    def end(self) -> None:
        self.process.kill()
        assert self.process.ended(within=60)

    def pause(self) -> float:
        """The program ends, and is started again after so many seconds."""
        self.end()
        began = self.now
        assert self.keeper.look() != ""
        while not self.process.running and self.now < began + 1000:
            self.now += 0.5
            assert self.keeper.look() == ""
        return self.now - began


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    made = Trial(tmp_path / "trial.log")
    yield made
    made.process.stop(within=0)


def test_of_one_that_runs_there_is_nothing_to_tell(trial: Trial) -> None:
    pid = trial.process.pid
    assert trial.keeper.look() == ""
    assert trial.process.pid == pid


def test_how_it_ended_where_its_log_is_and_when_it_comes_back_is_told_once(trial: Trial) -> None:
    trial.end()
    log = trial.process.log
    assert trial.keeper.look() == f"trial ended (SIGKILL) and is started again in 1 s; see {log}"
    assert trial.keeper.look() == ""
    assert not trial.process.running


def test_pauses_grow_to_half_a_minute(trial: Trial) -> None:
    assert [trial.pause() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_one_that_ran_for_a_while_is_forgiven(trial: Trial) -> None:
    assert [trial.pause() for _ in range(3)] == [1, 2, 4]
    trial.now += FORGIVEN_AFTER + 1
    assert trial.keeper.look() == ""
    assert trial.pause() == 1


def test_one_that_somebody_else_started_is_left_alone(trial: Trial) -> None:
    trial.end()
    trial.keeper.look()
    trial.process.start()
    pid = trial.process.pid
    trial.now += 1000
    assert trial.keeper.look() == ""
    assert trial.process.pid == pid
    trial.end()
    assert "is started again in 1 s" in trial.keeper.look()
