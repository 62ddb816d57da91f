"""How nvidia-imex is treated, observed by a script that records every start and signal, with a scripted ctl."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.clock import Clock
from imex_dra.daemon.state import DaemonState
from imex_dra.daemon.supervisor import Supervisor
from tests.daemon.simulatednode import Managed, Rack, SimulatedNode
from tests.waiting import until_async

IMEX_SCRIPT = """
echo $$ >> {directory}/starts
sleep {startup}
trap 'date +%s.%N >> {directory}/signals' USR1
touch {directory}/up
while :; do sleep 0.02; done
"""
CTL_SCRIPT = """
case " $* " in
  *" -q "*)
    [ -e {directory}/up ] || exit 0
    if [ -e {directory}/deaf ]; then echo >> {directory}/unheard; else echo READY; fi ;;
  *) if [ -e {directory}/domain ]; then cat {directory}/domain; echo >> {directory}/queries; else sleep 600; fi ;;
esac
"""
DOMAIN = (
    '{"nodes":{"0":{"connections":{"1":{"status":"CONNECTED"}}},"1":{"connections":{"0":{"status":"CONNECTED"}}}}}'
)


class Recorder:
    """Replaces nvidia-imex. Until `startup` seconds have passed, SIGUSR1 kills it, as it does any program."""

    def __init__(self, directory: Path, startup: float = 0.0) -> None:
        self.directory = directory
        self._startup = startup
        self.report_connections(DOMAIN)

    @asynccontextmanager
    async def managed(self, node: SimulatedNode, **options: Any) -> AsyncIterator[Managed]:
        script = IMEX_SCRIPT.format(directory=self.directory, startup=self._startup)
        environment = {"RELOAD_INTERVAL": options.pop("reload_interval", "5")}
        supervisor = {"command": ["sh", "-c", script, "nvidia-imex"], "environment": environment}
        ctl = ["sh", "-c", CTL_SCRIPT.format(directory=self.directory), "nvidia-imex-ctl"]
        async with node.managed(supervisor=supervisor, ctl_command=ctl, **options) as managed:
            yield managed

    def report_connections(self, output: str) -> None:
        (self.directory / "domain").write_text(output)

    def _lines(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def connection_queries(self) -> int:
        return len(self._lines("queries"))

    @property
    def unheard_queries(self) -> int:
        """Queries of the state that got no answer."""
        return len(self._lines("unheard"))

    @property
    def signals(self) -> list[float]:
        return [float(line) for line in self._lines("signals")]

    @property
    def starts(self) -> int:
        return len(self._lines("starts"))


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


async def test_many_address_changes_at_once_cause_two_signals_an_interval_apart(
    rack: Rack, node: SimulatedNode, recorder: Recorder
) -> None:
    async with recorder.managed(node, reload_interval="3") as managed:
        managed.desire(rack.member_list(0, 0, 1))
        await managed.until_ready(0)
        for generation in range(2, 8):
            addresses = {1: rack.address(generation)}
            managed.desire(rack.member_list(0, 0, 1, generation=generation, addresses=addresses))
            if generation == 2:
                await managed.until_ready(0, generation=2)
        await managed.until_ready(0, generation=7)
        await until_async(lambda: len(recorder.signals) == 2)
        first, second = recorder.signals
        assert second - first >= 2.5
        assert node.addresses()[1] == rack.address(7)
        assert {state.generation for state in managed.states} == {0, 1, 2, 7}
        assert recorder.starts == 1


async def test_a_process_is_not_signaled_before_it_answers(
    rack: Rack, node: SimulatedNode, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path, startup=1.5)
    async with recorder.managed(node) as managed:
        managed.desire(rack.member_list(0, 0))
        await until_async(lambda: recorder.starts)
        await managed.until(lambda state: state.generation == 1)
        managed.desire(rack.member_list(0, 0, 1, generation=2))
        await managed.until_ready(0, generation=2)
        await until_async(lambda: len(recorder.signals) == 1)
        assert recorder.starts == 1
        assert node.addresses()[1] == rack.address(1)
        assert not any(state.problem for state in managed.states)


async def test_a_failed_write_of_the_hosts_file_is_reported_and_retried_without_a_restart(
    rack: Rack, node: SimulatedNode, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def fail(self: object, hosts: object) -> None:
        attempts.append(hosts)
        raise OSError(30, "Read-only file system")

    async with recorder.managed(node, reload_interval="0") as managed:
        managed.desire(rack.member_list(0, 0))
        await managed.until_ready(0)
        with monkeypatch.context() as patched:
            patched.setattr(Supervisor, "write_hosts", fail)
            managed.desire(rack.member_list(0, 0, 1, generation=2))
            await until_async(lambda: len(attempts) >= 2)
            state = await managed.until(lambda state: state.problem)
            assert (state.state, state.generation) == (ImexState.READY, 1)
            assert state.problem == (
                "the configuration of nvidia-imex cannot be written: [Errno 30] Read-only file system"
            )
        assert (await managed.until_ready(0, generation=2)).problem == ""
        assert recorder.starts == 1
        assert node.addresses()[1] == rack.address(1)


async def test_a_configuration_that_cannot_be_written_is_reported_and_tried_again(
    rack: Rack, node: SimulatedNode, recorder: Recorder
) -> None:
    async with recorder.managed(node) as managed:
        (node.root.imex / "configs").write_text("a file")
        managed.desire(rack.member_list(0, 0))
        down = await managed.until(lambda state: state.problem)
        assert down.problem.startswith("the configuration of nvidia-imex cannot be written: ")
        (node.root.imex / "configs").unlink()
        await managed.until_ready(0)
        assert managed.states[-1].problem == ""


@pytest.mark.parametrize("output", ["", "{", '{"nodes":{}}', '{"nodes":{"n1":{}}}', "not JSON \\377"])
async def test_connections_that_cannot_be_read_any_more_stay_as_they_were(
    rack: Rack, node: SimulatedNode, recorder: Recorder, output: str
) -> None:
    async with recorder.managed(node) as managed:
        managed.desire(rack.member_list(0, 0, 1))
        await managed.until(lambda state: state.connected == (1,))
        recorder.report_connections(output)
        before = recorder.connection_queries
        await until_async(lambda: recorder.connection_queries >= before + 2)
        recorder.report_connections('{"nodes":{"0":{}}}')
        await managed.until(lambda state: state.connected == ())
        connected = [state.connected for state in managed.states]
        assert connected[connected.index((1,)) :] == [(1,), ()]


class FastClock(Clock):
    """Its wall clock runs ahead by what a test adds."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead


async def test_connections_that_were_not_reported_for_long_are_known_to_be_outdated(
    rack: Rack, node: SimulatedNode, recorder: Recorder
) -> None:
    clock = FastClock()
    async with recorder.managed(node, clock=clock) as managed:
        managed.desire(rack.member_list(0, 0, 1))
        await managed.until(lambda state: state.connected == (1,))
        recorder.report_connections("")
        clock.ahead = timedelta(hours=1)
        outdated = await managed.until(lambda state: state.unreported_since)
        assert outdated.connected == (1,)
        assert outdated.state is ImexState.READY
        recorder.report_connections(DOMAIN)
        await managed.until(lambda state: not state.unreported_since)


async def test_a_daemon_is_ready_although_its_connections_are_not_known_yet(
    rack: Rack, node: SimulatedNode, recorder: Recorder, tmp_path: Path
) -> None:
    (tmp_path / "domain").unlink()  # the query hangs
    async with recorder.managed(node) as managed:
        managed.desire(rack.member_list(0, 0, 1))
        assert (await managed.until_ready(0)).connected is None
        recorder.report_connections(DOMAIN)
        assert (await managed.until(lambda state: state.connected)).state is ImexState.READY


async def test_a_ready_daemon_whose_state_cannot_be_queried_once_stays_ready(
    rack: Rack, node: SimulatedNode, recorder: Recorder, tmp_path: Path
) -> None:
    deaf = tmp_path / "deaf"
    async with recorder.managed(node) as managed:
        managed.desire(rack.member_list(0, 0, 1))
        await managed.until(lambda state: state.connected == (1,))
        deaf.touch()
        await until_async(lambda: recorder.unheard_queries >= 1)
        deaf.unlink()
        queries = recorder.connection_queries
        await until_async(lambda: recorder.connection_queries >= queries + 2)
        if recorder.unheard_queries == 1:  # a second query may have begun in between
            assert all(state.state is ImexState.READY for state in since_ready(managed.states))
        deaf.touch()
        await managed.until(lambda state: state.state is ImexState.UNAVAILABLE)
        assert recorder.unheard_queries >= 3
        assert recorder.starts == 1


def since_ready(states: list[DaemonState]) -> list[DaemonState]:
    first = next(number for number, state in enumerate(states) if state.state is ImexState.READY)
    return states[first:]
