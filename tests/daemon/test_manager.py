"""The manager with a real supervisor and a real soft IMEX."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from imex_dra.api import nodereasons
from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.clock import Clock
from imex_dra.daemon.state import DaemonState, RecoveryTimeouts
from imex_dra.imex.ctl import ImexCtl
from imex_dra.imex.memberlist import Leave
from imex_sandbox.softimex import memory
from tests.daemon.simulatednode import HARDWARE, PARTITION, Rack, SimulatedNode
from tests.waiting import until_async


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


NO_RECOVERY = "nvidia-imex was restarted without recovery: "
NO_SUPERVISOR = nodereasons.supervisor_not_running()


async def test_the_daemon_starts_when_the_first_member_list_arrives(rack: Rack, node: SimulatedNode) -> None:
    async with node.managed() as managed:
        assert await managed.until(lambda state: True) == DaemonState()
        managed.desire(rack.member_list(0, 0))
        await managed.until(lambda state: state.connected is not None)
        expected = DaemonState(
            ImexState.READY, PARTITION, index=0, generation=1, connected=(), version=HARDWARE.driver_version
        )
        assert managed.states[-1].started_at
        assert structs.replace(managed.states[-1], started_at="") == expected
        assert node.addresses() == {0: rack.address(0), 1: "127.0.0.2", 2: "127.0.0.2", 3: "127.0.0.2"}


async def test_without_a_supervisor_the_state_says_what_to_check(rack: Rack, node: SimulatedNode) -> None:
    async with node.manager() as managed:
        managed.desire(rack.member_list(0, 0))
        unsupervised = DaemonState(problem=NO_SUPERVISOR, is_supervised=False)
        assert await managed.until(lambda state: True) == unsupervised
        supervisor = node.supervisor()
        try:
            await managed.until_ready(0)
        finally:
            supervisor.close()
        assert await managed.until(lambda state: state.problem) == unsupervised


async def test_two_members_connect_and_report_it(rack: Rack, node: SimulatedNode) -> None:
    other = SimulatedNode(rack, 1)
    async with node.managed() as here, other.managed() as there:
        here.desire(rack.member_list(0, 0, 1))
        there.desire(rack.member_list(1, 0, 1))
        await here.until(lambda state: state.connected == (1,))
        await there.until(lambda state: state.connected == (0,))


async def test_a_new_address_of_a_peer_is_applied_without_a_restart(rack: Rack, node: SimulatedNode) -> None:
    other, moved = SimulatedNode(rack, 1), SimulatedNode(rack, 2)
    async with node.managed() as here:
        async with other.managed() as there:
            here.desire(rack.member_list(0, 0, 1))
            there.desire(rack.member_list(1, 0, 1))
            await here.until(lambda state: state.connected == (1,))
            pid, started_at = node.imex_pid, here.states[-1].started_at
        await here.until(lambda state: state.connected == ())
        addresses = {1: rack.address(2)}
        async with moved.managed() as there:
            there.desire(rack.member_list(1, 0, 1, generation=2, addresses=addresses))
            here.desire(rack.member_list(0, 0, 1, generation=2, addresses=addresses))
            assert (await here.until(lambda state: state.connected == (1,))).generation == 2
        assert (node.imex_pid, here.states[-1].started_at) == (pid, started_at)
        assert all(state.state is ImexState.READY for state in since_ready(here.states))


def since_ready(states: list[DaemonState]) -> list[DaemonState]:
    first = next(number for number, state in enumerate(states) if state.state is ImexState.READY)
    return states[first:]


async def test_a_new_own_index_restarts_the_daemon_which_is_not_ready_meanwhile(
    rack: Rack, node: SimulatedNode
) -> None:
    async with node.managed() as managed:
        managed.desire(rack.member_list(0, 0))
        started_at = (await managed.until_ready(0)).started_at
        first = node.imex_pid
        managed.desire(rack.member_list(3, 3, generation=2, addresses={3: rack.address(0)}))
        assert (await managed.until_ready(3, generation=2)).started_at > started_at
        assert node.imex_pid != first
        reported = [(state.index, state.state is ImexState.READY) for state in managed.states]
        restart = reported[len(reported) - 1 - reported[::-1].index((0, True)) + 1 : reported.index((3, True))]
        assert restart
        assert not any(ready for _, ready in restart)
        configs = [path.name for path in (node.root.imex / "configs").iterdir()]
        assert configs == [(node.root.imex / "current").readlink().name]


async def test_a_killed_daemon_is_restarted_and_the_state_explains_why(rack: Rack, node: SimulatedNode) -> None:
    async with node.managed() as managed:
        managed.desire(rack.member_list(0, 0))
        started_at = (await managed.until_ready(0)).started_at
        first = node.imex_pid
        os.kill(first, signal.SIGKILL)
        down = await managed.until(lambda state: state.problem)
        assert (down.state, down.connected) == (ImexState.UNAVAILABLE, None)
        assert down.problem.startswith("nvidia-imex ended with SIGKILL")
        up = await managed.until_ready(0)
        assert up.problem == ""
        assert up.started_at > started_at
        assert node.imex_pid != first


async def test_the_output_of_a_daemon_that_exits_at_once_is_reported(rack: Rack, node: SimulatedNode) -> None:
    (node.root.path / "hardware.json").unlink()
    async with node.managed() as managed:
        managed.desire(rack.member_list(0, 0))
        down = await managed.until(lambda state: "no GPU driver" in state.problem)
        assert down.state is ImexState.UNAVAILABLE
        assert down.problem.startswith("nvidia-imex ended with exit code 1: ")
        node.root.write_hardware(HARDWARE)
        await managed.until_ready(0)


async def test_a_daemon_that_cannot_be_started_is_reported_with_its_command(
    rack: Rack, node: SimulatedNode
) -> None:
    async with node.managed(supervisor={"command": ["/no/such/nvidia-imex"]}) as managed:
        managed.desire(rack.member_list(0, 0))
        down = await managed.until(lambda state: "/no/such/nvidia-imex" in state.problem)
        assert down.state is ImexState.UNAVAILABLE
        assert down.problem.startswith("nvidia-imex ended with exit code 127: ")
        assert "not found" in down.problem


async def test_a_missing_ctl_does_not_stop_a_running_daemon(rack: Rack, node: SimulatedNode) -> None:
    async with node.managed(ctl_command=["/no/such/nvidia-imex-ctl"]) as managed:
        managed.desire(rack.member_list(0, 0))
        await until_async((node.root.path / "run/client/imex.sock").exists)
        first = node.imex_pid
        managed.desire(rack.member_list(0, 0, 1, generation=2))
        await until_async(lambda: node.addresses()[1] == rack.address(1))
        await managed.until(lambda state: state.generation == 1)
        assert node.imex_pid == first
        assert {state.state for state in managed.states} == {ImexState.UNAVAILABLE}


async def test_a_program_that_starts_adopts_the_process_without_reporting_it_as_unavailable(
    rack: Rack, node: SimulatedNode
) -> None:
    supervisor = node.supervisor()
    try:
        async with node.manager() as first:
            first.desire(rack.member_list(0, 0, generation=7))
            before = await first.until(lambda state: state.connected == ())
        pid = node.imex_pid
        async with node.manager() as second:
            adopted = await second.until(lambda state: state.connected == ())
            assert {state.state for state in second.states} == {ImexState.READY}
            assert adopted == before
            second.desire(rack.member_list(0, 0, 1, generation=8))
            await second.until_ready(0, generation=8)
        assert node.imex_pid == pid
        assert supervisor.find().restarts == 0
    finally:
        supervisor.close()


async def test_a_new_supervisor_starts_the_daemon_without_imex_node(rack: Rack, node: SimulatedNode) -> None:
    async with node.managed() as managed:
        managed.desire(rack.member_list(0, 0, generation=7))
        await managed.until_ready(0, generation=7)
    async with node.managed() as managed:
        await managed.until_ready(0, generation=7)


async def test_only_the_publisher_writes(rack: Rack, node: SimulatedNode) -> None:
    async with node.managed() as publisher, node.manager() as other:
        other.manager.desire(rack.member_list(0, 0, generation=9), may_write=False)
        publisher.desire(rack.member_list(0, 0))
        assert (await other.until_ready(0)).generation == 1
        other.manager.desire(Leave(""), may_write=False)
        publisher.desire(rack.member_list(0, 0, 1, generation=2))
        await other.until_ready(0, generation=2)


async def test_an_older_member_list_is_ignored(rack: Rack, node: SimulatedNode) -> None:
    async with node.managed() as managed:
        managed.desire(rack.member_list(0, 0, generation=5))
        await managed.until_ready(0, generation=5)
        managed.desire(rack.member_list(0, 0, 1, generation=4))
        number = len(managed.states)
        async with node.manager() as started:
            started.desire(rack.member_list(0, 0, 1, generation=4))
            await started.until_ready(0, generation=5)
        managed.desire(rack.member_list(0, 0, 2, generation=6))
        await managed.until_ready(0, generation=6)
        assert {state.generation for state in managed.states[number:]} <= {5, 6}
        assert (node.addresses()[1], node.addresses()[2]) == ("127.0.0.2", rack.address(2))


async def test_after_an_unclean_exit_the_daemon_waits_for_importers_only_for_a_time(
    rack: Rack, node: SimulatedNode
) -> None:
    other = SimulatedNode(rack, 1)
    async with node.managed(recovery_timeouts=RecoveryTimeouts(1.0)) as here:
        async with other.managed() as there:
            here.desire(rack.member_list(0, 0, 1))
            there.desire(rack.member_list(1, 0, 1))
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
                restarted = node.imex_pid
                os.kill(killed[0], signal.SIGCONT)
                await here.until(lambda state: state.connected == (1,))
                assert node.imex_pid == restarted
        found = node.files.find()
        assert found is not None
        assert found.running is not None
        assert found.running.quorum == "NONE"
        os.kill(restarted, signal.SIGKILL)
        await here.until(lambda state: state.state is ImexState.READY and state.problem == "")
        found = node.files.find()
        assert found is not None
        assert found.running is not None
        assert found.running.quorum == "RECOVERY"


def open_channel(node: SimulatedNode) -> memory.Channel:
    channel = node.root.path / "dev/nvidia-caps-imex-channels/channel5"
    channel.touch(mode=0o666)
    return memory.open_channel(channel, node.root.path / "run/client/imex.sock")


async def test_a_node_that_changes_partition_stops_its_daemon_until_it_is_a_member_again(
    rack: Rack, node: SimulatedNode
) -> None:
    async with node.managed() as managed:
        managed.desire(rack.member_list(0, 0, generation=5))
        await managed.until_ready(0, generation=5)
        first = node.imex_pid
        managed.desire(Leave(PARTITION))
        managed.desire(Leave("7b968a6d.2"))
        assert await managed.until(lambda state: state.partition == "") == DaemonState()
        assert not Path(f"/proc/{first}").exists()
        managed.desire(rack.member_list(0, 0, partition="7b968a6d.2"))
        assert (await managed.until_ready(0)).partition == "7b968a6d.2"


async def test_a_node_that_is_no_longer_a_member_stops_its_daemon(rack: Rack, node: SimulatedNode) -> None:
    async with node.managed() as managed:
        managed.desire(rack.member_list(0, 0, generation=5))
        await managed.until_ready(0, generation=5)
        first = node.imex_pid
        managed.desire(Leave(""))
        assert await managed.until(lambda state: state.partition == "") == DaemonState()
        assert not Path(f"/proc/{first}").exists()
        managed.desire(rack.member_list(0, 0, generation=2))
        await managed.until_ready(0, generation=2)


async def test_the_driver_root_is_written_before_the_start_and_again_when_the_driver_moves(
    rack: Rack, node: SimulatedNode
) -> None:
    async with node.managed() as managed:
        managed.manager.desire(rack.member_list(0, 0), may_write=True, driver_root="/run/nvidia/driver")
        pid = (await managed.until_ready(0)).started_at
        found = node.files.find()
        assert found is not None
        assert found.driver_root == "/run/nvidia/driver"
        managed.manager.desire(rack.member_list(0, 0), may_write=True, driver_root="/")
        await until_async(lambda: (found := node.files.find()) and found.driver_root == "/")
        assert managed.states[-1].started_at == pid


async def test_the_index_is_what_nvidia_imex_says_and_another_one_than_configured_is_a_problem(
    rack: Rack, node: SimulatedNode
) -> None:
    marked = "Node #2    * 10.0.0.1        * READY                - Version: 580.95"
    script = f'case "$*" in *" -N") echo "{marked}";; *) exec "$0" "$@";; esac'
    ctl = ["sh", "-c", script, *node.soft_imex("ctl")]
    supervisor = node.supervisor()
    try:
        async with node.manager(ctl_command=ctl) as managed:
            managed.desire(rack.member_list(0, 0))
            state = await managed.until_ready(2)
            assert state.problem.startswith(
                "nvidia-imex was started for index 0, but an address of another member"
            )
    finally:
        supervisor.close()


async def test_soft_imex_takes_the_configured_index(rack: Rack) -> None:
    node = SimulatedNode(rack, 3)
    async with node.managed() as managed:
        managed.desire(rack.member_list(3, 3))
        await managed.until_ready(3)
        found = node.files.find()
        assert found is not None
        assert found.running is not None
        assert await ImexCtl(node.soft_imex("ctl"), timeout=60).own_index(node.files.config(found.running)) == 3


@pytest.mark.parametrize(
    "evidence",
    [{"boot_ids": {1: "boot-1"}}, {"possible_importers": (1,), "boot_ids": {1: "boot-2"}}],
    ids=["suspended", "rebooted"],
)
async def test_a_member_that_may_have_imported_is_waited_for_until_it_is_suspended_or_has_rebooted(
    rack: Rack, node: SimulatedNode, evidence: dict[str, Any]
) -> None:
    other = SimulatedNode(rack, 1)
    limits = RecoveryTimeouts(without_importers=0.5, longest=600)
    async with node.managed(recovery_timeouts=limits) as here, other.managed() as there:
        here.desire(rack.member_list(0, 0, 1, possible_importers=(1,), boot_ids={1: "boot-1"}))
        there.desire(rack.member_list(1, 0, 1))
        await here.until(lambda state: state.connected == (1,))
        await there.until(lambda state: state.connected == (0,))
        with open_channel(node) as exporter, open_channel(other) as importer:
            importer.import_handle(exporter.allocate(65536).export())
            stopped = other.imex_pid
            os.kill(stopped, signal.SIGSTOP)
            try:
                os.kill(node.imex_pid, signal.SIGKILL)
                missing = f"from it; not connected: {rack.address(1)}: check these nodes"
                await here.until(lambda state: missing in state.problem)
                assert "waits up to 600 s" in here.states[-1].problem
                await asyncio.sleep(1.5)  # longer than it waits if none is missing
                assert here.states[-1].state is ImexState.WAITING_FOR_RECOVERY
                here.desire(rack.member_list(0, 0, 1, **evidence))
                await here.until(lambda state: state.problem.startswith(NO_RECOVERY))
                await here.until_ready(0)
            finally:
                os.kill(stopped, signal.SIGCONT)


class SettableClock(Clock):
    def __init__(self) -> None:
        self.ahead = 0.0
        self.reads = 0

    async def until_read(self, times: int) -> None:
        enough = self.reads + times
        await until_async(lambda: self.reads >= enough)

    def monotonic(self) -> float:
        self.reads += 1
        return super().monotonic() + self.ahead


async def test_without_a_member_list_it_is_not_known_that_no_importer_is_missing(
    rack: Rack, node: SimulatedNode
) -> None:
    """As while the partition is recovered, or was not received yet."""
    other, clock = SimulatedNode(rack, 1), SettableClock()
    with_importer = rack.member_list(0, 0, 1, possible_importers=(1,))
    async with node.managed(clock=clock) as here, other.managed() as there:
        here.desire(with_importer)
        there.desire(rack.member_list(1, 0, 1))
        await here.until(lambda state: state.connected == (1,))
        await there.until(lambda state: state.connected == (0,))
        with open_channel(node) as exporter, open_channel(other) as importer:
            importer.import_handle(exporter.allocate(65536).export())
            here.desire(None)
            stopped, killed = other.imex_pid, node.imex_pid
            os.kill(stopped, signal.SIGSTOP)
            try:
                os.kill(killed, signal.SIGKILL)
                await here.until(lambda state: state.state is ImexState.WAITING_FOR_RECOVERY)
                assert "waits up to 900 s" in here.states[-1].problem
                waiting = node.imex_pid
                for _ in range(2):
                    clock.ahead += RecoveryTimeouts().without_importers
                    await clock.until_read(5)
                here.desire(with_importer)
                await here.until(lambda state: f"not connected: {rack.address(1)}" in state.problem)
                assert node.imex_pid == waiting
                found = node.files.find()
                assert found is not None
                assert found.configured is not None
                assert found.configured.quorum == "RECOVERY"
            finally:
                os.kill(stopped, signal.SIGCONT)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
async def test_a_daemon_listens_on_ipv6_beside_members_with_ipv4(rack: Rack, node: SimulatedNode) -> None:
    """The hosts file has both families. Soft IMEX connects only within one, so the other member is missing."""
    (node.root.path / "addresses").write_text("::1\n")
    async with node.managed(supervisor={"environment": {"POD_IP": "::1"}}) as managed:
        managed.desire(rack.member_list(0, 0, 1, addresses={0: "::1", 1: rack.address(1)}))
        state = await managed.until_ready(0)
        assert state.address == "::1"
        assert node.addresses()[0] == "::1"
        assert (await managed.until(lambda state: state.connected is not None)).connected == ()
