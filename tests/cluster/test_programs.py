"""One program of one node, kept running: as a task, or apart as a process."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.cluster import programs
from imex_dra.sandbox.cluster.programs import Program

SLEEPER = "import sys, time; print('here', flush=True); time.sleep(600)"


class Trial:
    """Work that only counts how often it was started."""

    name = "imex-node"
    argv = (sys.executable, "-c", SLEEPER)

    def __init__(self, log: Path) -> None:
        self.log = log
        self.started = 0
        self.fails = False
        self.program = self.make()

    def make(self, *, apart: bool = False) -> Program:
        return Program(self, "n0", log=self.log, apart=apart)

    async def run(self) -> None:
        self.started += 1
        if self.fails:
            raise ValueError("it fails")
        await asyncio.sleep(600)

    async def serves(self, log: Path) -> None:
        await until(lambda: "here" in self.said())

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(50):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    monkeypatch.setattr(programs, "RESTART", 0.01)
    return Trial(tmp_path / "log")


@asynccontextmanager
async def running(program: Program) -> AsyncIterator[Program]:
    program.start()
    try:
        yield program
    finally:
        await program.stop()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_it_begins_as_a_task_that_has_no_pid(trial: Trial) -> None:
    async with running(trial.program) as program:
        await until(lambda: trial.started == 1)
        with pytest.raises(Rejected, match="no process of its own"):
            _ = program.pid
    assert trial.said() == ""


async def test_one_that_fails_is_started_again(trial: Trial) -> None:
    trial.fails = True
    async with running(trial.program):
        await until(lambda: trial.started >= 3)


async def test_a_process_that_ends_is_started_again(trial: Trial) -> None:
    async with running(trial.make(apart=True)) as program:
        await until(lambda: trial.said().count("here") == 1)
        os.kill(program.pid, signal.SIGKILL)
        await until(lambda: trial.said().count("here") == 2)


async def test_kill_is_a_real_signal_and_it_stays_down_until_started(trial: Trial) -> None:
    async with running(trial.program) as program:
        await program.kill()
        assert trial.said().count("here") == 1
        assert not program.wanted
        with pytest.raises(Rejected, match="does not run"):
            await program.kill()
        program.start()
        with pytest.raises(Rejected, match="runs already"):
            program.start()
        await until(lambda: trial.said().count("here") == 2)
        assert trial.started <= 1


async def test_a_hung_process_can_go_on_or_be_stopped(trial: Trial) -> None:
    async with running(trial.program) as program:
        await program.set_apart()
        pid = program.pid
        program.signal(signal.SIGSTOP)
        await until(lambda: state(pid) == "T")
        program.signal(signal.SIGCONT)
        await until(lambda: state(pid) == "S")
        program.signal(signal.SIGSTOP)
        await until(lambda: state(pid) == "T")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_stopped_one_leaves_no_process(trial: Trial) -> None:
    async with running(trial.make(apart=True)) as program:
        await until(lambda: "here" in trial.said())
        pid = program.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
