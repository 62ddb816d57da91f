"""Channel reuse: one story for each condition that keeps it safe."""

from collections.abc import Callable, Iterator

import pytest

from tests.controller.partition import ELSEWHERE, HERE
from tests.controller.reusemodel import NodeProgram
from tests.controller.test_reuse_model import ReuseMachine


@pytest.fixture
def story() -> Iterator[ReuseMachine]:
    """One channel can be assigned. Nodes a and b are in the partition HERE, c and d are ELSEWHERE."""
    machine = ReuseMachine()
    machine.start(2)
    yield machine
    machine.teardown()


def bind(story: ReuseMachine, *nodes: str) -> str:
    """Creates a ComputeDomain with pods on these nodes, and deletes all others; their processes keep running."""
    for uid in list(story.model.domains):
        story.model.delete_domain(uid)
    uid = story.model.create_domain()
    story.model.claims |= {(uid, node) for node in nodes}
    story.settle(3)
    return uid


def alone(story: ReuseMachine, node: str) -> None:
    """Only this node watches and reports for a while; the controller works."""
    machine = story.model.machines[node]
    for _ in range(4):
        story.model.watch(machine, machine.programs[0])
        story.model.begin_report(machine, machine.programs[0])
        story.model.write_report(machine, machine.programs[0])
        story.a_controller_works(machine, 0)


def run_on(story: ReuseMachine, node: str, uid: str) -> bool:
    machine = story.model.machines[node]
    before = len(machine.processes)
    story.start_pod(machine, machine.programs[0], uid)
    return len(machine.processes) > before


def late_commit(story: ReuseMachine, node: str, uid: str) -> Callable[[], None]:
    """A prepare decides now, and commits when the returned function is called."""
    machine, program = story.model.machines[node], NodeProgram()
    story.model.watch(machine, program)
    story.model.begin_prepare(machine, program, uid)
    assert program.prepares, "no grant"
    return lambda: story.model.commit_prepare(machine, program, 0)


def test_a_channel_is_reused_when_the_last_process_has_ended(story: ReuseMachine) -> None:
    first = bind(story, "a")
    assert run_on(story, "a", first)
    second = bind(story, "b")
    assert not run_on(story, "b", second), "node a still holds it"
    story.all_processes_end(story.model.machines["a"], 0)
    story.settle(3)
    assert run_on(story, "b", second)
    assert story.model.leaks() == []


def test_a_grant_from_before_the_acknowledgment_is_not_committed(story: ReuseMachine) -> None:
    commit = late_commit(story, "b", bind(story, "a", "b"))
    assert run_on(story, "a", bind(story, "a"))
    commit()
    assert story.model.leaks() == []


def test_nor_if_the_checkpoint_with_the_fence_was_lost(story: ReuseMachine) -> None:
    commit = late_commit(story, "b", bind(story, "a", "b"))
    assert run_on(story, "a", bind(story, "a"))
    story.a_checkpoint_is_corrupted(story.model.machines["b"], 0)
    commit()
    assert story.model.leaks() == []


def test_nor_if_the_node_has_moved_to_a_partition_where_another_domain_has_the_channel(
    story: ReuseMachine,
) -> None:
    uid = bind(story, "b")
    story.model.claims.add((story.model.create_domain(), "c"))
    story.settle(2)
    other = max(story.model.domains)
    assert run_on(story, "c", other)
    commit = late_commit(story, "b", uid)
    story.model.machines["b"].partition_id = ELSEWHERE
    story.settle(4)
    assert story.model.connected(story.model.machines["b"], story.model.machines["c"])
    commit()
    assert story.model.leaks() == []


def test_a_returning_node_that_holds_a_reassigned_channel_is_not_admitted(story: ReuseMachine) -> None:
    assert run_on(story, "b", bind(story, "b"))
    story.a_node_object_is_deleted(story.model.machines["b"], 0)
    story.settle(3)
    assert run_on(story, "a", bind(story, "a"))
    story.model.machines["b"].has_node = True
    story.settle(4)
    assert story.model.leaks() == []


def test_a_node_that_returns_while_it_is_leaving_must_be_admitted_again(story: ReuseMachine) -> None:
    """It was in another partition meanwhile, and holds a channel from there."""
    machine = story.model.machines["b"]
    for node in "ab":
        story.a_node_program_works(story.model.machines[node], 0)
    machine.partition_id = ELSEWHERE
    for _ in range(3):
        for node in "bcd":
            story.a_node_program_works(story.model.machines[node], 0)
        story.a_report_is_made(story.model.machines["a"], 0)
        story.a_report_is_written(story.model.machines["a"], 0)
        story.a_controller_works(machine, 0)
    uid = story.model.create_domain()
    story.model.claims.add((uid, "b"))
    story.a_controller_works(machine, 0)
    assert run_on(story, "b", uid)
    here = story.model.create_domain()
    story.model.claims.add((here, "a"))
    story.a_controller_works(machine, 0)
    assert run_on(story, "a", here)
    machine.partition_id = HERE
    story.settle(4)
    assert story.model.leaks() == []


def test_a_restored_partition_does_not_restore_a_member_that_left_since_the_backup(story: ReuseMachine) -> None:
    assert run_on(story, "b", bind(story, "b"))
    backup = story.model.history[HERE][-1]
    story.a_node_object_is_deleted(story.model.machines["b"], 0)
    story.settle(3)
    assert run_on(story, "a", bind(story, "a"))
    story.model.machines["b"].has_node = True
    story.settle(3)
    assert story.model.is_provably_old(HERE, backup)
    story.model.put(HERE, backup)
    story.settle(4)
    assert story.model.leaks() == []


def test_a_recovered_partition_assigns_nothing_while_a_member_list_contains_a_vanished_node(
    story: ReuseMachine,
) -> None:
    """Its Node object is gone, but its process and its daemon still run."""
    assert run_on(story, "b", bind(story, "b"))
    story.a_partition_is_lost(story.model.machines["a"], 0)
    story.a_node_object_is_deleted(story.model.machines["b"], 0)
    uid = replace_domain(story, "a")
    alone(story, "a")
    run_on(story, "a", uid)
    assert story.model.leaks() == []
    story.settle(4)
    assert run_on(story, "a", uid)
    assert story.model.leaks() == []


def settle_without(story: ReuseMachine, silent: str, rounds: int) -> None:
    """All nodes but one work."""
    for _ in range(rounds):
        for machine in story.model.machines.values():
            if machine.name != silent:
                story.a_node_program_works(machine, 0)
        story.a_controller_works(machine, 0)


def replace_domain(story: ReuseMachine, node: str) -> str:
    for uid in list(story.model.domains):
        story.model.delete_domain(uid)
    uid = story.model.create_domain()
    story.model.claims.add((uid, node))
    return uid


@pytest.mark.parametrize("nvlink_node", ["exists", "is lost too"])
def test_a_lost_partition_assigns_nothing_before_every_node_has_reported(
    story: ReuseMachine, nvlink_node: str
) -> None:
    machine = story.model.machines["b"]
    assert run_on(story, "b", bind(story, "b"))
    story.a_partition_is_lost(machine, 0)
    if nvlink_node == "is lost too":
        story.an_nvlink_node_is_deleted(machine, 0)
    uid = replace_domain(story, "a")
    settle_without(story, "b", 5)
    assert not run_on(story, "a", uid)
    story.settle(4)
    assert not run_on(story, "a", uid), "node b has reported that it holds the channel"
    story.all_processes_end(machine, 0)
    story.settle(4)
    assert run_on(story, "a", uid)
    assert story.model.leaks() == []


def test_a_member_that_does_not_report_blocks_reuse(story: ReuseMachine) -> None:
    assert run_on(story, "b", bind(story, "b"))
    uid = replace_domain(story, "a")
    settle_without(story, "b", 5)
    assert not run_on(story, "a", uid)
    assert story.model.leaks() == []


def test_a_leaving_member_blocks_reuse_until_all_other_daemons_run_without_it(story: ReuseMachine) -> None:
    assert run_on(story, "b", bind(story, "b"))
    story.a_node_object_is_deleted(story.model.machines["b"], 0)
    uid = replace_domain(story, "a")
    alone(story, "a")
    assert not run_on(story, "a", uid)
    story.settle(4)
    assert run_on(story, "a", uid)
    assert story.model.leaks() == []
