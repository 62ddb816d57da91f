"""The agent with a real soft IMEX as its child."""

import os
import signal
from pathlib import Path

import pytest

from imex_dra.api.nvlinknode import ImexState
from imex_dra.imex.link import DaemonState
from imex_dra.imex.membership import farewell
from imex_dra.softimex import memory
from tests.daemon.node import HARDWARE, PARTITION, Node, Rack, eventually


def child(node: Node) -> int:
    """The pid of the nvidia-imex that holds the node's only session."""
    return int((node.root.path / "run/imex.lock").read_text())


async def test_it_starts_from_nothing_as_soon_as_it_is_told_who_the_members_are(rack: Rack, node: Node) -> None:
    async with node.running(), node.speaker() as speaker:
        assert await speaker.until(lambda state: True) == DaemonState()
        await speaker.tell(rack.membership(0, 0))
        assert await speaker.until_ready(0) == DaemonState(ImexState.READY, PARTITION, slot=0, generation=1)
        assert node.names() == {"0": rack.address(0), "1": "127.0.0.2", "2": "127.0.0.2", "3": "127.0.0.2"}


async def test_two_of_them_connect_and_say_so(rack: Rack, node: Node) -> None:
    other = Node(rack, 1)
    async with node.running(), other.running(), node.speaker() as here, other.speaker() as there:
        await here.tell(rack.membership(0, 0, 1))
        await there.tell(rack.membership(1, 0, 1))
        await here.until(lambda state: state.connected == (1,))
        await there.until(lambda state: state.connected == (0,))


async def test_a_peer_that_moved_is_followed_without_a_restart(rack: Rack, node: Node) -> None:
    other, moved = Node(rack, 1), Node(rack, 2)
    async with node.running(), node.speaker() as here:
        async with other.running(), other.speaker() as there:
            await here.tell(rack.membership(0, 0, 1))
            await there.tell(rack.membership(1, 0, 1))
            await here.until(lambda state: state.connected == (1,))
            pid = child(node)
        await here.until(lambda state: state.connected == ())
        addresses = {"1": rack.address(2)}
        async with moved.running(), moved.speaker() as there:
            await there.tell(rack.membership(1, 0, 1, generation=2, addresses=addresses))
            await here.tell(rack.membership(0, 0, 1, generation=2, addresses=addresses))
            assert (await here.until(lambda state: state.connected == (1,))).generation == 2
        assert child(node) == pid
        assert all(state.state is ImexState.READY for state in here.heard[here.heard.index(ready(here.heard)) :])


def ready(heard: list[DaemonState]) -> DaemonState:
    return next(state for state in heard if state.state is ImexState.READY)


async def test_a_new_own_slot_means_a_restart_and_it_is_not_ready_in_between(rack: Rack, node: Node) -> None:
    async with node.running(), node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0))
        await speaker.until_ready(0)
        first = child(node)
        await speaker.tell(rack.membership(3, 3, generation=2, addresses={"3": rack.address(0)}))
        await speaker.until_ready(3, generation=2)
        assert child(node) != first
        told = [(state.slot, state.state is ImexState.READY) for state in speaker.heard]
        restart = told[told.index((0, True)) + 1 : told.index((3, True))]
        assert restart
        assert not any(said_ready for _, said_ready in restart)
        assert (3, False) in restart


async def test_a_child_that_was_killed_is_started_again_and_the_state_says_why(rack: Rack, node: Node) -> None:
    async with node.running(), node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0))
        await speaker.until_ready(0)
        first = child(node)
        os.kill(first, signal.SIGKILL)
        down = await speaker.until(lambda state: state.problem)
        assert (down.state, down.connected) == (ImexState.UNAVAILABLE, ())
        assert down.problem.startswith("nvidia-imex ended with SIGKILL")
        up = await speaker.until_ready(0)
        assert up.problem == ""
        assert child(node) != first


async def test_a_child_that_ends_at_once_is_quoted(rack: Rack, node: Node) -> None:
    (node.root.path / "hardware.json").unlink()
    async with node.running(), node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0))
        down = await speaker.until(lambda state: state.problem)
        assert down.state is ImexState.UNAVAILABLE
        assert down.problem.startswith("nvidia-imex ended with exit code 1: ")
        assert "no GPU driver" in down.problem
        node.root.write_hardware(HARDWARE)
        await speaker.until_ready(0)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/no/such/nvidia-imex"], "/no/such/nvidia-imex can't be started: No such file or directory"),
        (["/dev/null"], "/dev/null can't be started: Permission denied"),
    ],
)
async def test_a_child_that_can_t_be_started_is_named(
    rack: Rack, node: Node, command: list[str], words: str
) -> None:
    async with node.running(command=command), node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0))
        down = await speaker.until(lambda state: state.problem)
        assert (down.state, down.problem) == (ImexState.UNAVAILABLE, words)


async def test_a_missing_ctl_does_not_end_a_daemon_that_runs(rack: Rack, node: Node) -> None:
    async with node.running(ctl_command=["/no/such/nvidia-imex-ctl"]) as agent, node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0))
        await eventually((node.root.path / "run/client/imex.sock").exists)
        first = child(node)
        await speaker.tell(rack.membership(0, 0, generation=2))
        await speaker.until(lambda state: state.generation == 2)
        assert not agent.done()
        assert child(node) == first
        assert {state.state for state in speaker.heard} == {ImexState.UNAVAILABLE}


async def test_after_a_restart_it_needs_no_node_program(rack: Rack, node: Node) -> None:
    async with node.running(), node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0, generation=7))
        await speaker.until_ready(0, generation=7)
    node.socket.unlink(missing_ok=True)
    node.hosts.write_text("")
    async with node.running(), node.speaker() as speaker:
        await speaker.until_ready(0, generation=7)


async def test_a_memory_that_can_not_be_written_is_no_reason_to_be_down(rack: Rack, node: Node) -> None:
    (node.directory / "membership.json").mkdir(parents=True)
    async with node.running(), node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0))
        await speaker.until_ready(0)


async def test_a_spoilt_memory_is_as_good_as_none(rack: Rack, node: Node) -> None:
    (node.directory / "membership.json").write_bytes(b'{"partition":"\xff"}')
    async with node.running(), node.speaker() as speaker:
        assert await speaker.until(lambda state: True) == DaemonState()
        await speaker.tell(rack.membership(0, 0))
        await speaker.until_ready(0)


async def test_an_older_list_is_not_followed(rack: Rack, node: Node) -> None:
    async with node.running(), node.speaker() as speaker, node.speaker() as straggler:
        await speaker.tell(rack.membership(0, 0, generation=5))
        await speaker.until_ready(0, generation=5)
        await straggler.tell(rack.membership(0, 0, 1, generation=4))
        straggler.writer.write_eof()
        await eventually(lambda: straggler.hung_up)
        await speaker.tell(rack.membership(0, 0, 2, generation=6))
        await speaker.until_ready(0, generation=6)
        assert {state.generation for state in speaker.heard} == {0, 5, 6}
        assert (node.names()["1"], node.names()["2"]) == ("127.0.0.2", rack.address(2))


async def test_after_an_unclean_exit_it_waits_for_importers_but_not_for_ever(rack: Rack, node: Node) -> None:
    other = Node(rack, 1)
    async with node.running(recovery_patience=1.0), node.speaker() as here:
        async with other.running(), other.speaker() as there:
            await here.tell(rack.membership(0, 0, 1))
            await there.tell(rack.membership(1, 0, 1))
            await here.until(lambda state: state.connected == (1,))
            await there.until(lambda state: state.connected == (0,))
            with open_channel(node) as exporter, open_channel(other) as importer:
                importer.attach(exporter.allocate(65536).export())
                killed = [child(each) for each in (other, node)]
                for pid in killed:
                    os.kill(pid, signal.SIGSTOP if pid == killed[0] else signal.SIGKILL)
                await here.until(lambda state: state.problem.startswith("it was restarted without waiting: "), 60)
                await here.until_ready(0)
                assert here.heard[-1].problem.startswith("it was restarted without waiting: ")
                words = {state.problem for state in here.heard if state.state is ImexState.WAITING_FOR_RECOVERY}
                assert words == {"it ended uncleanly and waits, 1 s at most, for nodes that had imported from it"}
                assert node.setting("IMEX_WAIT_FOR_QUORUM") == "NONE"
                alone = child(node)
                os.kill(killed[0], signal.SIGCONT)
                await here.until(lambda state: state.connected == (1,))
                assert child(node) == alone
        os.kill(alone, signal.SIGKILL)
        await here.until(lambda state: state.state is ImexState.READY and state.problem == "")
        assert node.setting("IMEX_WAIT_FOR_QUORUM") == "RECOVERY"


def open_channel(node: Node) -> memory.Channel:
    channel = node.root.path / "dev/nvidia-caps-imex-channels/channel5"
    channel.touch(mode=0o666)
    return memory.open_channel(channel, node.root.path / "run/client/imex.sock")


async def test_a_node_that_has_moved_ends_its_daemon_and_starts_it_where_it_is_taken_in(
    rack: Rack, node: Node
) -> None:
    async with node.running(), node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0))
        await speaker.until_ready(0)
        first = child(node)
        await speaker.tell(farewell(PARTITION))
        await speaker.tell(farewell("7b968a6d.2"))
        left = await speaker.until(lambda state: state.partition == "")
        assert left == DaemonState()
        assert not Path(f"/proc/{first}").exists()
        assert not (node.directory / "membership.json").exists()
        await speaker.tell(rack.membership(0, 0, partition="7b968a6d.2"))
        assert (await speaker.until_ready(0)).partition == "7b968a6d.2"
        before = speaker.heard[1 : speaker.heard.index(left, 1)]
        assert {state.partition for state in before} == {PARTITION}


async def test_an_agent_that_is_idle_has_nothing_to_leave(rack: Rack, node: Node) -> None:
    async with node.running() as agent, node.speaker() as speaker:
        await speaker.tell(farewell("7b968a6d.2"))
        await speaker.tell(rack.membership(0, 0))
        await speaker.until_ready(0)
        assert not agent.done()
