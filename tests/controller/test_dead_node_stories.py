"""Channel reuse with dead nodes: cut off, suspended, back again, and lost together with the partition."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from imex_dra.api.nvlinkpartition import ChannelState, MemberState, NVLinkPartitionStatus
from imex_dra.controller.epochs import PATIENCE
from imex_dra.controller.settings import DEFAULTS
from tests.controller.partition import ELSEWHERE, HERE
from tests.controller.reusemodel import Machine, Model
from tests.controller.test_reuse_model import ReuseMachine
from tests.controller.test_reuse_stories import run_on


class Rack(ReuseMachine):
    """Three nodes in one partition. Two channels can be assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.channels = 3
        self.model = Model(self.root, dict.fromkeys("abc", HERE) | {"d": ELSEWHERE}, self.channels)
        self.settle(3)

    @property
    def status(self) -> NVLinkPartitionStatus:
        partition = self.model.partitions[HERE]
        assert partition is not None
        return partition.status

    @property
    def states(self) -> dict[str, MemberState]:
        return {member.node: member.state for member in self.status.members}

    def bind(self, node: str) -> str:
        """A new ComputeDomain with a pod on the node."""
        uid = self.model.create_domain()
        self.model.claims.add((uid, node))
        self.settle(2)
        return uid

    def run(self, node: str) -> str:
        uid = self.bind(node)
        assert run_on(self, node, uid)
        return uid

    def end(self, uid: str) -> None:
        """Its processes end, and it is deleted; no node is asked about its channel yet."""
        for machine in self.model.machines.values():
            for claim in [claim for claim, process in machine.processes.items() if process.domain == uid]:
                self.model.end_process(machine, claim)
        self.model.delete_domain(uid)
        self.a_controller_works(machine, 0)

    def wait(self, seconds: float) -> None:
        self.model.now += timedelta(seconds=seconds)
        self.settle(3)

    def cut_off(self, node: str) -> Machine:
        machine = self.model.machines[node]
        machine.is_ready, machine.has_api, machine.is_isolated = False, False, True
        self.settle(2)
        return machine

    def suspend(self, node: str) -> Machine:
        machine = self.cut_off(node)
        self.wait(DEFAULTS.suspend_after)
        assert self.states[node] is MemberState.SUSPENDED
        return machine

    def reconnect(self, machine: Machine) -> None:
        machine.is_ready, machine.has_api, machine.is_isolated = True, True, False

    def acknowledge(self, machine: Machine) -> None:
        """The node program works, but its daemon gets no new list; the controller works."""
        self.model.watch(machine, machine.programs[0])
        self.model.begin_report(machine, machine.programs[0])
        self.model.write_report(machine, machine.programs[0])
        self.a_controller_works(machine, 0)

    def assigned(self) -> dict[int, str]:
        entries = self.status.channels
        return {e.channel: e.compute_domain.uid for e in entries if e.state is ChannelState.ASSIGNED}


@pytest.fixture
def rack() -> Iterator[Rack]:
    rack = Rack()
    yield rack
    rack.teardown()


def test_a_dead_node_is_unknown_then_suspended_and_returns_with_its_index(rack: Rack) -> None:
    before = {member.node: member.index for member in rack.status.members}
    machine = rack.cut_off("b")
    assert rack.states == {"a": MemberState.READY, "b": MemberState.UNKNOWN, "c": MemberState.READY}
    rack.wait(DEFAULTS.suspend_after - 1)
    assert rack.states["b"] == "Unknown"
    rack.wait(1)
    assert rack.states["b"] == "Suspended"
    rack.reconnect(machine)
    rack.settle(3)
    assert set(rack.states.values()) == {MemberState.READY}
    assert {member.node: member.index for member in rack.status.members} == before


def test_a_suspended_member_blocks_only_channels_that_were_released_after_its_last_acknowledgment(
    rack: Rack,
) -> None:
    early, late = rack.run("a"), rack.run("a")
    assert rack.assigned() == {1: early, 2: late}
    rack.end(early)
    rack.wait(PATIENCE)
    machine = rack.suspend("b")
    rack.end(late)
    rack.wait(PATIENCE)
    epoch = rack.status.epoch
    rack.run("c")
    waiting = rack.bind("a")
    rack.settle(3)
    assert not run_on(rack, "a", waiting)
    assert rack.status.epoch == epoch, "nothing was released since"
    rack.reconnect(machine)
    rack.settle(4)
    assert run_on(rack, "a", waiting)
    assert rack.model.leaks() == []


def test_a_channel_that_was_assigned_while_a_member_was_suspended_does_not_wait_for_it(rack: Rack) -> None:
    before = rack.run("a")
    machine = rack.suspend("b")
    rack.end(before)
    rack.wait(PATIENCE)
    for _ in range(4):
        uid = rack.run("c")
        assert rack.assigned() == {2: uid}, "channel 1 was assigned before the suspension"
        rack.end(uid)
        rack.wait(PATIENCE)
    rack.reconnect(machine)
    rack.settle(4)
    assert len({rack.run("a"), rack.run("c")}) == 2
    assert rack.model.leaks() == []


def test_members_are_asked_again_although_one_is_suspended(rack: Rack) -> None:
    one, two = rack.run("a"), rack.run("c")
    rack.suspend("b")
    for uid in (one, two):
        epoch = rack.status.epoch
        rack.end(uid)
        rack.wait(PATIENCE)
        assert rack.status.epoch == epoch + 1


def test_a_process_on_a_suspended_node_keeps_its_channel(rack: Rack) -> None:
    held = rack.run("b")
    rack.run("a")
    machine = rack.suspend("b")
    rack.model.delete_domain(held)
    rack.wait(PATIENCE)
    waiting = rack.bind("a")
    rack.wait(PATIENCE)
    assert not run_on(rack, "a", waiting)
    rack.reconnect(machine)
    rack.settle(4)
    assert not run_on(rack, "a", waiting), "it is back, and still holds the channel"
    rack.all_processes_end(machine, 0)
    rack.settle(4)
    assert run_on(rack, "a", waiting)
    assert rack.model.leaks() == []


def test_a_suspended_node_gets_no_channel_before_its_daemon_has_the_current_list(rack: Rack) -> None:
    """Node c leaves while b is suspended. The daemon of b is still connected to it, and its process runs on."""
    gone = rack.run("c")
    machine = rack.suspend("b")
    rack.model.machines["c"].has_api = False
    rack.a_node_object_is_deleted(rack.model.machines["c"], 0)
    rack.model.delete_domain(gone)
    rack.settle(4)
    assert rack.states.keys() == {"a", "b"}, "the leaving member did not wait for the suspended one"
    rack.run("a")
    rack.wait(PATIENCE)
    rack.reconnect(machine)
    new = rack.model.create_domain()
    rack.model.claims.add((new, "b"))
    for _ in range(5):
        rack.acknowledge(machine)
        rack.acknowledge(rack.model.machines["a"])
    assert rack.model.connected(machine, rack.model.machines["c"])
    assert rack.assigned()[1] == new, "the channel of the deleted ComputeDomain was reused"
    assert not run_on(rack, "b", new)
    assert rack.model.leaks() == []
    rack.settle(4)
    assert run_on(rack, "b", new)
    assert rack.model.leaks() == []


def test_a_prepare_of_a_suspended_node_that_commits_late_shares_no_channel(rack: Rack) -> None:
    uid = rack.bind("b")
    machine = rack.model.machines["b"]
    rack.model.watch(machine, machine.programs[0])
    rack.model.begin_prepare(machine, machine.programs[0], uid)
    rack.suspend("b")
    rack.end(uid)
    rack.wait(PATIENCE)
    rack.run("a")
    waiting = rack.bind("a")
    rack.wait(PATIENCE)
    run_on(rack, "a", waiting)
    rack.model.commit_prepare(machine, machine.programs[0], 0)
    rack.reconnect(machine)
    rack.settle(4)
    run_on(rack, "a", waiting)
    assert rack.model.leaks() == []


def test_a_partition_that_is_lost_while_a_node_is_off_keeps_serving_what_is_known(rack: Rack) -> None:
    known = rack.run("a")
    off = rack.suspend("b")
    rack.model.claims.add((known, "c"))
    rack.a_partition_is_lost(off, 0)
    rack.settle(3)
    assert (rack.states["a"], rack.states["c"]) == (MemberState.READY, MemberState.READY)
    assert rack.status.pending_reports == ("b",)
    assert run_on(rack, "c", known), "its channel is known"
    new = rack.bind("a")
    assert not run_on(rack, "a", new), "node b has not reported"
    rack.a_node_object_is_deleted(off, 0)
    rack.settle(4)
    assert run_on(rack, "a", new)
    assert rack.model.leaks() == []


def test_a_recovering_partition_sends_no_incomplete_member_list(rack: Rack) -> None:
    """Both kinds of objects are lost, and nodes report one after the other."""
    machines = rack.model.machines
    rack.a_partition_is_lost(machines["a"], 0)
    for machine in machines.values():
        rack.an_nvlink_node_is_deleted(machine, 0)
    for machine in machines.values():
        rack.a_node_program_works(machine, 0)
        rack.a_controller_works(machine, 0)
        rack.a_node_program_works(machine, 0)
        assert all(rack.model.connected(machines["a"], machines[other]) for other in "bc")
    rack.settle(4)
    assert set(rack.states.values()) == {MemberState.READY}


def test_a_node_with_an_older_list_gets_no_channel_while_the_partition_recovers(rack: Rack) -> None:
    """Node c left while b was suspended, so the list of b still contains it."""
    gone = rack.run("c")
    machine = rack.suspend("b")
    rack.model.machines["c"].has_api = False
    rack.a_node_object_is_deleted(rack.model.machines["c"], 0)
    rack.model.delete_domain(gone)
    rack.settle(4)
    rack.run("a")
    rack.wait(PATIENCE)
    rack.reconnect(machine)
    new = rack.model.create_domain()
    rack.model.claims |= {(new, "a"), (new, "b")}
    for _ in range(5):
        rack.acknowledge(machine)
        rack.acknowledge(rack.model.machines["a"])
    assert run_on(rack, "a", new)
    rack.model.write_domain_status(new)
    rack.a_partition_is_lost(machine, 0)
    for _ in range(2):
        rack.acknowledge(machine)
    assert rack.status.pending_reports
    assert not run_on(rack, "b", new)
    assert rack.model.leaks() == []
    rack.settle(5)
    assert run_on(rack, "b", new)
    assert rack.model.leaks() == []


def test_a_deleted_computedomain_in_an_outdated_cache_is_no_evidence_for_its_channel(rack: Rack) -> None:
    known = rack.run("a")
    rack.model.write_domain_status(known)
    outdated = rack.model.current_view()
    rack.model.delete_domain(known)
    rack.a_partition_is_lost(rack.model.machines["a"], 0)
    outdated.partitions[HERE] = None
    rack.model.reconcile(outdated, HERE)
    assert rack.status.pending_reports
    assert rack.assigned() == {}
