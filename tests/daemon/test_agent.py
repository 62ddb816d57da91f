"""The agent with a real soft IMEX as its child process."""

import os
import signal
from pathlib import Path

import pytest
from msgspec import structs

from imex_dra.api.nvlinknode import ImexState
from imex_dra.imex.link import DaemonState
from imex_dra.imex.memberlist import leave
from imex_sandbox.softimex import memory
from tests.daemon.simulatednode import HARDWARE, PARTITION, Rack, SimulatedNode
from tests.waiting import until_async

NO_RECOVERY = "nvidia-imex was restarted without recovery: "


async def test_the_daemon_starts_when_the_first_member_list_arrives(rack: Rack, node: SimulatedNode) -> None:
    async with node.running_agent(), node.client() as client:
        assert await client.until(lambda state: True) == DaemonState()
        await client.send(rack.member_list(0, 0))
        await client.until(lambda state: state.connected is not None)
        expected = DaemonState(ImexState.READY, PARTITION, index=0, generation=1, connected=())
        assert client.states[-1].started_at
        assert structs.replace(client.states[-1], started_at="") == expected
        assert node.addresses() == {"0": rack.address(0), "1": "127.0.0.2", "2": "127.0.0.2", "3": "127.0.0.2"}


async def test_two_members_connect_and_report_it(rack: Rack, node: SimulatedNode) -> None:
    other = SimulatedNode(rack, 1)
    async with node.running_agent(), other.running_agent(), node.client() as here, other.client() as there:
        await here.send(rack.member_list(0, 0, 1))
        await there.send(rack.member_list(1, 0, 1))
        await here.until(lambda state: state.connected == (1,))
        await there.until(lambda state: state.connected == (0,))


async def test_a_new_address_of_a_peer_is_applied_without_a_restart(rack: Rack, node: SimulatedNode) -> None:
    other, moved = SimulatedNode(rack, 1), SimulatedNode(rack, 2)
    async with node.running_agent(), node.client() as here:
        async with other.running_agent(), other.client() as there:
            await here.send(rack.member_list(0, 0, 1))
            await there.send(rack.member_list(1, 0, 1))
            await here.until(lambda state: state.connected == (1,))
            pid, started_at = node.imex_pid, here.states[-1].started_at
        await here.until(lambda state: state.connected == ())
        addresses = {"1": rack.address(2)}
        async with moved.running_agent(), moved.client() as there:
            await there.send(rack.member_list(1, 0, 1, generation=2, addresses=addresses))
            await here.send(rack.member_list(0, 0, 1, generation=2, addresses=addresses))
            assert (await here.until(lambda state: state.connected == (1,))).generation == 2
        assert (node.imex_pid, here.states[-1].started_at) == (pid, started_at)
        assert all(state.state is ImexState.READY for state in since_ready(here.states))


def since_ready(states: list[DaemonState]) -> list[DaemonState]:
    first = next(number for number, state in enumerate(states) if state.state is ImexState.READY)
    return states[first:]


async def test_a_new_own_index_restarts_the_daemon_which_is_not_ready_meanwhile(
    rack: Rack, node: SimulatedNode
) -> None:
    async with node.running_agent(), node.client() as client:
        await client.send(rack.member_list(0, 0))
        started_at = (await client.until_ready(0)).started_at
        first = node.imex_pid
        await client.send(rack.member_list(3, 3, generation=2, addresses={"3": rack.address(0)}))
        assert (await client.until_ready(3, generation=2)).started_at > started_at
        assert node.imex_pid != first
        reported = [(state.index, state.state is ImexState.READY) for state in client.states]
        restart = reported[reported.index((0, True)) + 1 : reported.index((3, True))]
        assert restart
        assert not any(ready for _, ready in restart)
        assert (3, False) in restart


async def test_a_killed_daemon_is_restarted_and_the_state_explains_why(rack: Rack, node: SimulatedNode) -> None:
    async with node.running_agent(), node.client() as client:
        await client.send(rack.member_list(0, 0))
        started_at = (await client.until_ready(0)).started_at
        first = node.imex_pid
        os.kill(first, signal.SIGKILL)
        down = await client.until(lambda state: state.problem)
        assert (down.state, down.connected) == (ImexState.UNAVAILABLE, None)
        assert down.problem.startswith("nvidia-imex ended with SIGKILL")
        up = await client.until_ready(0)
        assert up.problem == ""
        assert up.started_at > started_at
        assert node.imex_pid != first


async def test_the_output_of_a_daemon_that_exits_at_once_is_reported(rack: Rack, node: SimulatedNode) -> None:
    (node.root.path / "hardware.json").unlink()
    async with node.running_agent(), node.client() as client:
        await client.send(rack.member_list(0, 0))
        down = await client.until(lambda state: state.problem)
        assert down.state is ImexState.UNAVAILABLE
        assert down.problem.startswith("nvidia-imex ended with exit code 1: ")
        assert "no GPU driver" in down.problem
        node.root.write_hardware(HARDWARE)
        await client.until_ready(0)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["/no/such/nvidia-imex"], "/no/such/nvidia-imex cannot be started: No such file or directory"),
        (["/dev/null"], "/dev/null cannot be started: Permission denied"),
    ],
)
async def test_a_daemon_that_cannot_be_started_is_reported_with_its_command(
    rack: Rack, node: SimulatedNode, command: list[str], problem: str
) -> None:
    async with node.running_agent(command=command), node.client() as client:
        await client.send(rack.member_list(0, 0))
        down = await client.until(lambda state: state.problem)
        assert (down.state, down.problem) == (ImexState.UNAVAILABLE, problem)


async def test_a_missing_ctl_does_not_stop_a_running_daemon(rack: Rack, node: SimulatedNode) -> None:
    async with node.running_agent(ctl_command=["/no/such/nvidia-imex-ctl"]) as agent, node.client() as client:
        await client.send(rack.member_list(0, 0))
        await until_async((node.root.path / "run/client/imex.sock").exists)
        first = node.imex_pid
        await client.send(rack.member_list(0, 0, generation=2))
        await client.until(lambda state: state.generation == 2)
        assert not agent.done()
        assert node.imex_pid == first
        assert {state.state for state in client.states} == {ImexState.UNAVAILABLE}


async def test_after_a_restart_the_daemon_starts_without_imex_node(rack: Rack, node: SimulatedNode) -> None:
    async with node.running_agent(), node.client() as client:
        await client.send(rack.member_list(0, 0, generation=7))
        await client.until_ready(0, generation=7)
    node.socket.unlink(missing_ok=True)
    node.hosts.write_text("")
    async with node.running_agent(), node.client() as client:
        await client.until_ready(0, generation=7)


async def test_the_daemon_runs_even_if_the_member_list_cannot_be_saved(rack: Rack, node: SimulatedNode) -> None:
    node.member_list_file.mkdir(parents=True)
    async with node.running_agent(), node.client() as client:
        await client.send(rack.member_list(0, 0))
        await client.until_ready(0)


async def test_an_invalid_saved_member_list_is_ignored(rack: Rack, node: SimulatedNode) -> None:
    node.member_list_file.write_bytes(b'{"partition":"\xff"}')
    async with node.running_agent(), node.client() as client:
        assert await client.until(lambda state: True) == DaemonState()
        await client.send(rack.member_list(0, 0))
        await client.until_ready(0)


async def test_an_older_member_list_is_ignored(rack: Rack, node: SimulatedNode) -> None:
    async with node.running_agent(), node.client() as client, node.client() as outdated:
        await client.send(rack.member_list(0, 0, generation=5))
        await client.until_ready(0, generation=5)
        await outdated.send(rack.member_list(0, 0, 1, generation=4))
        outdated.writer.write_eof()
        await until_async(lambda: outdated.closed)
        await client.send(rack.member_list(0, 0, 2, generation=6))
        await client.until_ready(0, generation=6)
        assert {state.generation for state in client.states} == {0, 5, 6}
        assert (node.addresses()["1"], node.addresses()["2"]) == ("127.0.0.2", rack.address(2))


async def test_after_an_unclean_exit_the_daemon_waits_for_importers_only_for_a_time(
    rack: Rack, node: SimulatedNode
) -> None:
    other = SimulatedNode(rack, 1)
    async with node.running_agent(recovery_timeout=1.0), node.client() as here:
        async with other.running_agent(), other.client() as there:
            await here.send(rack.member_list(0, 0, 1))
            await there.send(rack.member_list(1, 0, 1))
            await here.until(lambda state: state.connected == (1,))
            await there.until(lambda state: state.connected == (0,))
            with open_channel(node) as exporter, open_channel(other) as importer:
                importer.import_handle(exporter.allocate(65536).export())
                killed = [each.imex_pid for each in (other, node)]
                for pid in killed:
                    os.kill(pid, signal.SIGSTOP if pid == killed[0] else signal.SIGKILL)
                await here.until(lambda state: state.problem.startswith(NO_RECOVERY))
                await here.until_ready(0)
                assert here.states[-1].problem.startswith(NO_RECOVERY)
                problems = {
                    state.problem for state in here.states if state.state is ImexState.WAITING_FOR_RECOVERY
                }
                assert problems == {
                    "nvidia-imex did not exit cleanly and waits up to 1 s for the nodes that had imported memory"
                    " from it"
                }
                assert node.setting("IMEX_WAIT_FOR_QUORUM") == "NONE"
                restarted = node.imex_pid
                os.kill(killed[0], signal.SIGCONT)
                await here.until(lambda state: state.connected == (1,))
                assert node.imex_pid == restarted
        os.kill(restarted, signal.SIGKILL)
        await here.until(lambda state: state.state is ImexState.READY and state.problem == "")
        assert node.setting("IMEX_WAIT_FOR_QUORUM") == "RECOVERY"


def open_channel(node: SimulatedNode) -> memory.Channel:
    channel = node.root.path / "dev/nvidia-caps-imex-channels/channel5"
    channel.touch(mode=0o666)
    return memory.open_channel(channel, node.root.path / "run/client/imex.sock")


async def test_a_node_that_changes_partition_stops_its_daemon_until_it_is_a_member_again(
    rack: Rack, node: SimulatedNode
) -> None:
    async with node.running_agent(), node.client() as client:
        await client.send(rack.member_list(0, 0))
        await client.until_ready(0)
        first = node.imex_pid
        await client.send(leave(PARTITION))
        await client.send(leave("7b968a6d.2"))
        left = await client.until(lambda state: state.partition == "")
        assert left == DaemonState()
        assert not Path(f"/proc/{first}").exists()
        assert not node.member_list_file.exists()
        await client.send(rack.member_list(0, 0, partition="7b968a6d.2"))
        assert (await client.until_ready(0)).partition == "7b968a6d.2"
        before = client.states[1 : client.states.index(left, 1)]
        assert {state.partition for state in before} == {PARTITION}


async def test_an_idle_agent_ignores_a_change_of_partition(rack: Rack, node: SimulatedNode) -> None:
    async with node.running_agent() as agent, node.client() as client:
        await client.send(leave("7b968a6d.2"))
        await client.send(rack.member_list(0, 0))
        await client.until_ready(0)
        assert not agent.done()


async def test_a_node_that_is_no_longer_a_member_stops_its_daemon(rack: Rack, node: SimulatedNode) -> None:
    async with node.running_agent(), node.client() as client:
        await client.send(rack.member_list(0, 0))
        await client.until_ready(0)
        first = node.imex_pid
        await client.send(leave(""))
        assert await client.until(lambda state: state.partition == "") == DaemonState()
        assert not Path(f"/proc/{first}").exists()
        assert not node.member_list_file.exists()
        await client.send(rack.member_list(0, 0, generation=2))
        await client.until_ready(0, generation=2)
