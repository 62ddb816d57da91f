"""What happens when a process of a cluster ends: by itself, or because a fault killed it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.base.errors import Unavailable
from imex_sandbox.cluster.supervisor import RESET_AFTER, Restarter, Supervisor
from imex_sandbox.process import Process


def sleeping(name: str, logs: Path) -> Iterator[Process]:
    process = Process(name, ["sleep", "600"], log=logs / f"{name}.log")
    process.start()
    yield process
    process.stop(within=0)


def end(process: Process) -> None:
    process.kill()
    assert process.wait(within=60)


@pytest.fixture
def apiserver(tmp_path: Path) -> Iterator[Process]:
    yield from sleeping("kube-apiserver", tmp_path)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Process]:
    yield from sleeping("imex-controller", tmp_path)


@pytest.fixture
def supervisor(apiserver: Process, controller: Process) -> Supervisor:
    supervisor = Supervisor()
    supervisor.require(apiserver)
    supervisor.restart_on_exit(controller.name, controller)
    return supervisor


class TestSupervisor:
    def test_while_all_processes_run_there_is_nothing_to_do(self, supervisor: Supervisor) -> None:
        assert (supervisor.failure(), supervisor.restart_ended()) == ("", [])

    def test_the_end_of_a_required_process_is_a_failure(self, supervisor: Supervisor, apiserver: Process) -> None:
        end(apiserver)
        assert supervisor.failure() == (
            "kube-apiserver ended unexpectedly (SIGKILL), and the cluster cannot run without it;"
            f" log: {apiserver.log}"
        )

    def test_a_process_that_was_killed_on_purpose_is_neither_a_failure_nor_restarted(
        self, supervisor: Supervisor, apiserver: Process, controller: Process
    ) -> None:
        supervisor.killed.update({apiserver.name, controller.name})
        end(apiserver)
        end(controller)
        assert (supervisor.failure(), supervisor.restart_ended()) == ("", [])

    def test_nothing_is_restarted_while_a_required_process_is_down_on_purpose(
        self, supervisor: Supervisor, apiserver: Process, controller: Process
    ) -> None:
        supervisor.killed.add(apiserver.name)
        end(apiserver)
        end(controller)
        assert supervisor.restart_ended() == []
        apiserver.start()
        supervisor.killed.discard(apiserver.name)
        assert supervisor.restart_ended() == [
            f"imex-controller ended (SIGKILL); restarting in 1 s; log: {controller.log}"
        ]

    def test_the_result_of_a_coroutine_is_returned(self, supervisor: Supervisor) -> None:
        async def answer() -> int:
            return 42

        assert supervisor.run(answer()) == 42

    @pytest.mark.timeout(60)
    def test_a_coroutine_is_cancelled_when_a_required_process_ends(
        self, supervisor: Supervisor, apiserver: Process
    ) -> None:
        async def never() -> None:
            await asyncio.Event().wait()

        end(apiserver)
        with pytest.raises(Unavailable, match="kube-apiserver ended unexpectedly"):
            supervisor.run(never())


class RestarterFixture:
    """A process that ends on request, and a clock that moves on request."""

    def __init__(self, process: Process) -> None:
        self.now = 100.0
        self.process = process
        self.restarter = Restarter(process, lambda: self.now)

    def seconds_until_restart(self) -> float:
        """End the process, and move the clock until it is restarted."""
        end(self.process)
        began = self.now
        assert self.restarter.check() != ""
        while not self.process.running and self.now < began + 1000:
            self.now += 0.5
            assert self.restarter.check() == ""
        return self.now - began


@pytest.fixture
def fixture(controller: Process) -> RestarterFixture:
    return RestarterFixture(controller)


class TestRestarter:
    def test_a_running_process_is_left_alone(self, fixture: RestarterFixture) -> None:
        pid = fixture.process.pid
        assert fixture.restarter.check() == ""
        assert fixture.process.pid == pid

    def test_one_message_says_how_the_process_ended_and_when_it_restarts(self, fixture: RestarterFixture) -> None:
        end(fixture.process)
        assert fixture.restarter.check() == (
            f"imex-controller ended (SIGKILL); restarting in 1 s; log: {fixture.process.log}"
        )
        assert fixture.restarter.check() == ""
        assert not fixture.process.running

    def test_the_delay_doubles_up_to_half_a_minute(self, fixture: RestarterFixture) -> None:
        assert [fixture.seconds_until_restart() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]

    def test_the_delay_is_reset_after_a_minute_without_an_exit(self, fixture: RestarterFixture) -> None:
        assert [fixture.seconds_until_restart() for _ in range(3)] == [1, 2, 4]
        fixture.now += RESET_AFTER + 1
        assert fixture.restarter.check() == ""
        assert fixture.seconds_until_restart() == 1

    def test_a_process_that_was_started_by_a_request_is_not_started_twice(self, fixture: RestarterFixture) -> None:
        end(fixture.process)
        fixture.restarter.check()
        fixture.process.start()
        pid = fixture.process.pid
        fixture.now += 1000
        assert fixture.restarter.check() == ""
        assert fixture.process.pid == pid
        end(fixture.process)
        assert "restarting in 1 s" in fixture.restarter.check()
