"""How the agent treats the nvidia-imex process, observed by a script that records every start and signal."""

import asyncio
import os
import signal
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import structlog

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.clock import Clock
from imex_dra.daemon.process import ImexProcess, LineBudget
from imex_dra.imex.link import DaemonState
from tests.daemon.simulatednode import KILLED_WITH_PARENT, Rack, SimulatedNode
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
        self.report_connections(DOMAIN)
        self.commands = {
            "command": [
                *KILLED_WITH_PARENT,
                "sh",
                "-c",
                IMEX_SCRIPT.format(directory=directory, startup=startup),
                "nvidia-imex",
            ],
            "ctl_command": ["sh", "-c", CTL_SCRIPT.format(directory=directory), "nvidia-imex-ctl"],
        }

    def report_connections(self, output: str) -> None:
        (self.directory / "domain").write_text(output)

    @property
    def connection_queries(self) -> int:
        path = self.directory / "queries"
        return len(path.read_text().splitlines()) if path.exists() else 0

    @property
    def unheard_queries(self) -> int:
        """Queries of the state that got no answer."""
        path = self.directory / "unheard"
        return len(path.read_text().splitlines()) if path.exists() else 0

    @property
    def signals(self) -> list[float]:
        path = self.directory / "signals"
        return [float(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def starts(self) -> int:
        return len((self.directory / "starts").read_text().splitlines())


async def test_many_address_changes_at_once_cause_two_signals_an_interval_apart(
    rack: Rack, node: SimulatedNode, tmp_path: Path
) -> None:
    recorder, interval = Recorder(tmp_path), 2.0
    async with node.running_agent(**recorder.commands, reload_interval=interval), node.client() as client:
        await client.send(rack.member_list(0, 0, 1))
        await client.until_ready(0)
        lists = [
            rack.member_list(0, 0, 1, generation=generation, addresses={"1": rack.address(generation)})
            for generation in range(2, 8)
        ]
        await client.send(lists[0])
        await client.until_ready(0, generation=2)
        await client.send(*lists[1:])
        await client.until_ready(0, generation=7)
        await until_async(lambda: len(recorder.signals) == 2)
        first, second = recorder.signals
        assert second - first >= interval * 0.5
        assert node.addresses()["1"] == rack.address(7)
        assert {state.generation for state in client.states} == {0, 1, 2, 7}
        assert recorder.starts == 1


async def test_a_new_generation_with_the_same_addresses_sends_no_signal(
    rack: Rack, node: SimulatedNode, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path)
    async with node.running_agent(**recorder.commands), node.client() as client:
        await client.send(rack.member_list(0, 0, 1))
        await client.until_ready(0)
        await client.send(rack.member_list(0, 0, 1, generation=2))
        await client.until_ready(0, generation=2)
        assert (recorder.signals, recorder.starts) == ([], 1)


async def test_a_process_is_not_signaled_before_it_answers(
    rack: Rack, node: SimulatedNode, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path, startup=0.5)
    async with node.running_agent(**recorder.commands), node.client() as client:
        await client.send(rack.member_list(0, 0))
        await until_async((tmp_path / "starts").exists)
        await client.send(rack.member_list(0, 0, 1, generation=2))
        await client.until_ready(0, generation=2)
        await until_async(lambda: len(recorder.signals) == 1)
        assert recorder.starts == 1
        assert node.addresses()["1"] == rack.address(1)
        assert not any(state.problem for state in client.states)


async def test_a_failed_write_of_the_hosts_file_is_retried_without_a_restart(
    rack: Rack, node: SimulatedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, attempts = Recorder(tmp_path), []

    def fail(self: object, member_list: object) -> None:
        attempts.append(member_list)
        raise OSError(30, "Read-only file system")

    async with node.running_agent(**recorder.commands, reload_interval=0.1), node.client() as client:
        await client.send(rack.member_list(0, 0))
        await client.until_ready(0)
        with monkeypatch.context() as patched:
            patched.setattr("imex_dra.imex.files.ImexFiles.write_hosts", fail)
            await client.send(rack.member_list(0, 0, 1, generation=2))
            await until_async(lambda: len(attempts) >= 2)
            assert client.states[-1].generation == 1
        await client.until_ready(0, generation=2)
        assert recorder.starts == 1
        assert node.addresses()["1"] == rack.address(1)


async def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = f"trap '' TERM; echo $$ > {tmp_path / 'pid'}; while :; do sleep 0.02; done"
    process = ImexProcess([*KILLED_WITH_PARENT, "sh", "-c", script], stop_timeout=0.2)
    run = asyncio.create_task(process.run())
    await until_async(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    run.cancel()
    async with asyncio.timeout(45):
        await asyncio.wait({run})
    assert run.cancelled()
    await until_async(lambda: not Path("/proc", (tmp_path / "pid").read_text().strip()).exists())


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 0", "nvidia-imex ended with exit code 0"),
        (
            "echo no such file; echo giving up >&2; exit 3",
            "nvidia-imex ended with exit code 3: no such file; giving up",
        ),
        (
            "for i in 1 2 3 4 5 6 7; do echo $i; done; kill -SEGV $$",
            "nvidia-imex ended with SIGSEGV: 3; 4; 5; 6; 7",
        ),
        (r"printf '\377'; exit 1", "nvidia-imex ended with exit code 1: \ufffd"),
    ],
)
async def test_the_exit_status_is_reported_with_the_last_output(script: str, problem: str) -> None:
    assert await ImexProcess(["sh", "-c", script]).run() == problem


INVALID = [
    b"\0\0\0\1{",
    b"\0\0\0\2[]",
    b"\0\0\0\2{}",
    b'\0\0\0\x11{"partition":"\xff"}',
    b"\xff\xff\xff\xff",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\0",
]


@pytest.mark.parametrize("message", INVALID)
async def test_an_invalid_message_closes_that_connection_and_nothing_else(
    rack: Rack, node: SimulatedNode, tmp_path: Path, message: bytes
) -> None:
    recorder = Recorder(tmp_path)
    async with node.running_agent(**recorder.commands) as agent, node.client() as good, node.client() as bad:
        await good.send(rack.member_list(0, 0))
        await good.until_ready(0)
        bad.writer.write(message)
        bad.writer.write_eof()
        await until_async(lambda: bad.closed)
        await good.send(rack.member_list(0, 0, generation=2))
        await good.until_ready(0, generation=2)
        assert not agent.done()
        assert recorder.starts == 1


async def test_a_client_that_disconnects_does_not_affect_the_others(
    rack: Rack, node: SimulatedNode, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path)
    async with node.running_agent(**recorder.commands), node.client() as other:
        async with node.client() as gone:
            await gone.send(rack.member_list(0, 0))
            await other.until_ready(0)
            gone.writer.transport.abort()
        for generation in range(2, 12):
            await other.send(rack.member_list(0, 0, generation=generation))
        assert (await other.until_ready(0, generation=11)).state is ImexState.READY


async def test_a_stopped_agent_stops_the_process_and_closes_its_connections(
    rack: Rack, node: SimulatedNode, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path)
    async with node.running_agent(**recorder.commands) as agent, node.client() as client:
        await client.send(rack.member_list(0, 0))
        await client.until_ready(0)
        pid = int((tmp_path / "starts").read_text())
        agent.cancel()
        async with asyncio.timeout(45):
            await asyncio.wait({agent})
        assert not Path(f"/proc/{pid}").exists()
        await until_async(lambda: client.closed)


async def test_a_grandchild_that_holds_the_pipe_does_not_hide_the_end_of_the_process(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/left; echo the last line; exit 3"
    async with asyncio.timeout(60):
        assert await ImexProcess([*KILLED_WITH_PARENT, "sh", "-c", script]).run() == (
            "nvidia-imex ended with exit code 3: the last line"
        )
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


async def test_a_line_over_the_buffer_limit_does_not_stop_the_reader() -> None:
    script = "head -c 300000 /dev/zero | tr '\\0' x; echo; echo the last line; exit 3"
    async with asyncio.timeout(60):
        assert (await ImexProcess([*KILLED_WITH_PARENT, "sh", "-c", script]).run()).endswith("the last line")


async def test_long_lines_are_truncated_in_the_report() -> None:
    script = "for i in 1 2; do echo $i; head -c 40000 /dev/zero | tr '\\0' x; echo; done; exit 3"
    async with asyncio.timeout(60):
        problem = await ImexProcess([*KILLED_WITH_PARENT, "sh", "-c", script]).run()
    assert problem == f"nvidia-imex ended with exit code 3: 1; {'x' * 500}; 2; {'x' * 500}"


@pytest.mark.parametrize("output", ["", "{", '{"nodes":{}}', '{"nodes":{"n1":{}}}', "not JSON \\377"])
async def test_connections_that_cannot_be_read_any_more_stay_as_they_were(
    rack: Rack, node: SimulatedNode, tmp_path: Path, output: str
) -> None:
    recorder = Recorder(tmp_path)
    async with node.running_agent(**recorder.commands) as agent, node.client() as client:
        await client.send(rack.member_list(0, 0, 1))
        await client.until(lambda state: state.connected == (1,))
        recorder.report_connections(output)
        before = recorder.connection_queries
        await until_async(lambda: recorder.connection_queries >= before + 2)
        recorder.report_connections('{"nodes":{"0":{}}}')
        await client.until(lambda state: state.connected == ())
        assert not agent.done()
        connected = [state.connected for state in client.states]
        assert connected[connected.index((1,)) :] == [(1,), ()]


class FastClock(Clock):
    """Its wall clock runs ahead by what a test adds."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead


async def test_connections_that_were_not_reported_for_long_are_known_to_be_outdated(
    rack: Rack, node: SimulatedNode, tmp_path: Path
) -> None:
    recorder, clock = Recorder(tmp_path), FastClock()
    async with node.running_agent(**recorder.commands, clock=clock), node.client() as client:
        await client.send(rack.member_list(0, 0, 1))
        await client.until(lambda state: state.connected == (1,))
        recorder.report_connections("")
        clock.ahead = timedelta(hours=1)
        outdated = await client.until(lambda state: state.unreported_since)
        assert outdated.connected == (1,)
        assert outdated.state is ImexState.READY
        recorder.report_connections(DOMAIN)
        await client.until(lambda state: not state.unreported_since)


async def test_a_daemon_is_ready_although_its_connections_are_not_known_yet(
    rack: Rack, node: SimulatedNode, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path)
    (tmp_path / "domain").unlink()  # the query hangs
    async with node.running_agent(**recorder.commands), node.client() as client:
        await client.send(rack.member_list(0, 0, 1))
        assert (await client.until_ready(0)).connected is None
        recorder.report_connections(DOMAIN)
        assert (await client.until(lambda state: state.connected)).state is ImexState.READY


async def test_a_ready_daemon_whose_state_cannot_be_queried_once_stays_ready(
    rack: Rack, node: SimulatedNode, tmp_path: Path
) -> None:
    recorder, deaf = Recorder(tmp_path), tmp_path / "deaf"
    async with node.running_agent(**recorder.commands), node.client() as client:
        await client.send(rack.member_list(0, 0, 1))
        await client.until(lambda state: state.connected == (1,))
        deaf.touch()
        await until_async(lambda: recorder.unheard_queries >= 1)
        deaf.unlink()
        queries = recorder.connection_queries
        await until_async(lambda: recorder.connection_queries >= queries + 2)
        if recorder.unheard_queries == 1:  # a second query may have begun in between
            assert all(state.state is ImexState.READY for state in since_ready(client.states))
        deaf.touch()
        await client.until(lambda state: state.state is ImexState.UNAVAILABLE)
        assert recorder.unheard_queries >= 3
        assert recorder.starts == 1


def since_ready(states: list[DaemonState]) -> list[DaemonState]:
    first = next(number for number, state in enumerate(states) if state.state is ImexState.READY)
    return states[first:]


async def test_a_configuration_that_cannot_be_written_is_reported_and_tried_again(
    rack: Rack, node: SimulatedNode, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path)
    config = node.config_dir / "config.cfg"
    config.mkdir(parents=True)
    async with node.running_agent(**recorder.commands) as agent, node.client() as client:
        await client.send(rack.member_list(0, 0))
        down = await client.until(lambda state: state.problem)
        assert down.problem.startswith("the configuration of nvidia-imex cannot be written: ")
        config.rmdir()
        assert (await client.until_ready(0)).problem == ""
        assert not agent.done()


def test_the_first_lines_of_a_minute_are_logged_at_info_and_the_others_are_counted() -> None:
    budget = LineBudget(limit=3, period=60.0)
    assert [budget.spend(100.0 + second) for second in range(5)] == [True, True, True, False, False]
    assert budget.take_omitted(159.0) == 0
    assert budget.take_omitted(160.0) == 2
    assert budget.take_omitted(161.0) == 0
    assert [budget.spend(160.0), budget.spend(161.0)] == [True, True]
    assert budget.take_omitted(230.0) == 0


async def test_a_daemon_that_writes_a_lot_does_not_fill_our_log_and_its_last_lines_are_reported() -> None:
    with structlog.testing.capture_logs() as logs:
        problem = await ImexProcess(["sh", "-c", "for i in $(seq 1 40); do echo line $i; done; exit 1"]).run()
    levels = [entry["log_level"] for entry in logs if entry["event"] == "nvidia-imex"]
    assert levels == ["info"] * 10 + ["debug"] * 30
    assert problem == "nvidia-imex ended with exit code 1: line 36; line 37; line 38; line 39; line 40"
