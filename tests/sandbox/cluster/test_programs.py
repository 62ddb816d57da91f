"""One program of one node, kept running as a task or as a process."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from imex_dra.base.errors import Rejected
from imex_sandbox.cluster import programs
from imex_sandbox.cluster.programs import Program
from tests.waiting import until_async

SLEEP = "import sys, time; print('started', flush=True); time.sleep(600)"


class FakeEntrypoint:
    """Counts how often its coroutine was started; its process writes to the log."""

    name = "imex-node"
    argv = (sys.executable, "-c", SLEEP)

    def __init__(self, log: Path) -> None:
        self.log = log
        self.tasks_started = 0
        self.fails = False

    def program(self, *, as_process: bool = False) -> Program:
        return Program(self, "n0", log=self.log, task=None if as_process else self.run)

    async def run(self) -> None:
        self.tasks_started += 1
        if self.fails:
            raise ValueError("a bug")
        await asyncio.sleep(600)

    async def wait_until_serving(self, log: Path) -> None:
        await until_async(lambda: self.processes_started > 0)

    @property
    def processes_started(self) -> int:
        return self.log.read_text().count("started") if self.log.exists() else 0


@pytest.fixture
def entrypoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEntrypoint:
    monkeypatch.setattr(programs, "RESTART_DELAY", 0.01)
    return FakeEntrypoint(tmp_path / "log")


@asynccontextmanager
async def running(program: Program) -> AsyncIterator[Program]:
    program.start()
    try:
        yield program
    finally:
        await program.stop()


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_program_starts_as_a_task_without_a_pid(entrypoint: FakeEntrypoint) -> None:
    async with running(entrypoint.program()) as program:
        await until_async(lambda: entrypoint.tasks_started == 1)
        with pytest.raises(Rejected, match="has no process of its own"):
            _ = program.pid
    assert entrypoint.processes_started == 0


async def test_a_task_that_fails_is_restarted(entrypoint: FakeEntrypoint) -> None:
    entrypoint.fails = True
    async with running(entrypoint.program()):
        await until_async(lambda: entrypoint.tasks_started >= 3)


async def test_a_process_that_ends_is_restarted(entrypoint: FakeEntrypoint) -> None:
    async with running(entrypoint.program(as_process=True)) as program:
        await until_async(lambda: entrypoint.processes_started == 1)
        os.kill(program.pid, signal.SIGKILL)
        await until_async(lambda: entrypoint.processes_started == 2)


async def test_a_killed_program_gets_a_real_signal_and_stays_down_until_it_is_started(
    entrypoint: FakeEntrypoint,
) -> None:
    async with running(entrypoint.program()) as program:
        await program.kill()
        assert entrypoint.processes_started == 1
        assert not program.started
        with pytest.raises(Rejected, match="is not running"):
            await program.kill()
        program.start()
        with pytest.raises(Rejected, match="is already running"):
            program.start()
        await until_async(lambda: entrypoint.processes_started == 2)
        assert entrypoint.tasks_started <= 1


async def test_a_hung_process_can_be_resumed_and_stopped(entrypoint: FakeEntrypoint) -> None:
    async with running(entrypoint.program()) as program:
        await program.move_to_process()
        pid = program.pid
        program.signal(signal.SIGSTOP)
        await until_async(lambda: process_state(pid) == "T")
        program.signal(signal.SIGCONT)
        await until_async(lambda: process_state(pid) == "S")
        program.signal(signal.SIGSTOP)
        await until_async(lambda: process_state(pid) == "T")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_stopping_a_program_ends_its_process(entrypoint: FakeEntrypoint) -> None:
    async with running(entrypoint.program(as_process=True)) as program:
        await until_async(lambda: entrypoint.processes_started == 1)
        pid = program.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
