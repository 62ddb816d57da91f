"""Channels are used again: stories, each of which a broken condition would spoil."""

from collections.abc import Callable, Iterator

import pytest

from tests.controller.partition import ELSEWHERE, HERE
from tests.controller.reuse import Program
from tests.controller.test_channel_reuse import ReuseMachine


@pytest.fixture
def story() -> Iterator[ReuseMachine]:
    """A world with one channel to give: a and b are here, c and d elsewhere."""
    machine = ReuseMachine()
    machine.start(2)
    yield machine
    machine.teardown()


def bind(story: ReuseMachine, *nodes: str) -> str:
    """A new ComputeDomain with pods on these nodes, in place of the last one, whose processes stay."""
    for uid in list(story.world.domains):
        story.world.delete_domain(uid)
    uid = story.world.add_domain()
    story.world.claims |= {(uid, node) for node in nodes}
    story.settle(3)
    return uid


def alone(story: ReuseMachine, node: str) -> None:
    """Only this node sees, answers and says anything for a while, and the controller works."""
    machine = story.world.machines[node]
    for _ in range(4):
        story.world.watch(machine, machine.programs[0])
        story.world.answer(machine, machine.programs[0])
        story.world.publish(machine, machine.programs[0])
        story.a_controller_works(machine, 0)


def run_on(story: ReuseMachine, node: str, uid: str) -> bool:
    machine = story.world.machines[node]
    before = len(machine.processes)
    story.start_pod(machine, machine.programs[0], uid)
    return len(machine.processes) > before


def late_grant(story: ReuseMachine, node: str, uid: str) -> Callable[[], None]:
    """A prepare gets its grant now, and enters it when it is told to."""
    machine, program = story.world.machines[node], Program()
    story.world.watch(machine, program)
    story.world.begin(machine, program, uid)
    assert program.pending, "there is no grant"
    return lambda: story.world.commit(machine, program, 0)


def test_a_number_goes_from_one_domain_to_the_next_when_its_process_has_ended(story: ReuseMachine) -> None:
    first = bind(story, "a")
    assert run_on(story, "a", first)
    second = bind(story, "b")
    assert not run_on(story, "b", second), "a still holds it"
    story.all_processes_end(story.world.machines["a"], 0)
    story.settle(3)
    assert run_on(story, "b", second)
    assert story.world.leaks() == []


def test_a_grant_that_comes_after_the_answer_is_not_entered(story: ReuseMachine) -> None:
    enter = late_grant(story, "b", bind(story, "a", "b"))
    assert run_on(story, "a", bind(story, "a"))
    enter()
    assert story.world.leaks() == []


def test_nor_if_the_checkpoint_with_the_promise_was_lost(story: ReuseMachine) -> None:
    enter = late_grant(story, "b", bind(story, "a", "b"))
    assert run_on(story, "a", bind(story, "a"))
    story.a_checkpoint_is_spoilt(story.world.machines["b"], 0)
    enter()
    assert story.world.leaks() == []


def test_nor_if_the_node_has_moved_to_where_the_number_is_anothers(story: ReuseMachine) -> None:
    uid = bind(story, "b")
    story.world.claims.add((story.world.add_domain(), "c"))
    story.settle(2)
    other = max(story.world.domains)
    assert run_on(story, "c", other)
    enter = late_grant(story, "b", uid)
    story.world.machines["b"].place = ELSEWHERE
    story.settle(4)
    assert story.world.connected(story.world.machines["b"], story.world.machines["c"])
    enter()
    assert story.world.leaks() == []


def test_a_node_that_comes_back_with_a_number_that_is_anothers_by_now_stays_outside(story: ReuseMachine) -> None:
    assert run_on(story, "b", bind(story, "b"))
    story.a_node_object_is_deleted(story.world.machines["b"], 0)
    story.settle(3)
    assert run_on(story, "a", bind(story, "a"))
    story.world.machines["b"].exists = True
    story.settle(4)
    assert story.world.leaks() == []


def test_a_node_that_comes_back_before_it_has_left_is_looked_at_as_well(story: ReuseMachine) -> None:
    """It has been elsewhere meanwhile, and brings a number from there."""
    machine = story.world.machines["b"]
    for node in "ab":
        story.a_node_catches_up(story.world.machines[node], 0)
    machine.place = ELSEWHERE
    for _ in range(3):
        for node in "bcd":
            story.a_node_catches_up(story.world.machines[node], 0)
        story.a_controller_works(machine, 0)
    uid = story.world.add_domain()
    story.world.claims.add((uid, "b"))
    story.a_controller_works(machine, 0)
    assert run_on(story, "b", uid)
    here = story.world.add_domain()
    story.world.claims.add((here, "a"))
    story.a_controller_works(machine, 0)
    assert run_on(story, "a", here)
    machine.place = HERE
    story.settle(4)
    assert story.world.leaks() == []


def test_who_was_put_out_since_the_backup_is_not_in_again_with_it(story: ReuseMachine) -> None:
    assert run_on(story, "b", bind(story, "b"))
    backup = story.world.history[HERE][-1]
    story.a_node_object_is_deleted(story.world.machines["b"], 0)
    story.settle(3)
    assert run_on(story, "a", bind(story, "a"))
    story.world.machines["b"].exists = True
    story.settle(3)
    assert story.world.is_provably_old(HERE, backup)
    story.world.put(HERE, backup)
    story.settle(4)
    assert story.world.leaks() == []


def test_nothing_is_given_from_a_record_made_anew_while_a_vanished_node_is_in_a_list(story: ReuseMachine) -> None:
    """Its Node object is gone, and its process and daemon are not."""
    assert run_on(story, "b", bind(story, "b"))
    story.a_record_is_lost(story.world.machines["a"], 0)
    story.a_node_object_is_deleted(story.world.machines["b"], 0)
    uid = replace_domain(story, "a")
    alone(story, "a")
    run_on(story, "a", uid)
    assert story.world.leaks() == []
    story.settle(4)
    assert run_on(story, "a", uid)
    assert story.world.leaks() == []


def without(story: ReuseMachine, silent: str, rounds: int) -> None:
    """Everybody catches up but one."""
    for _ in range(rounds):
        for machine in story.world.machines.values():
            if machine.name != silent:
                story.a_node_catches_up(machine, 0)
        story.a_controller_works(machine, 0)


def replace_domain(story: ReuseMachine, node: str) -> str:
    for uid in list(story.world.domains):
        story.world.delete_domain(uid)
    uid = story.world.add_domain()
    story.world.claims.add((uid, node))
    return uid


@pytest.mark.parametrize("card", ["stays", "is lost too"])
def test_a_lost_record_gives_nothing_before_a_silent_node_has_answered(story: ReuseMachine, card: str) -> None:
    machine = story.world.machines["b"]
    assert run_on(story, "b", bind(story, "b"))
    story.a_record_is_lost(machine, 0)
    if card == "is lost too":
        story.a_card_is_deleted(machine, 0)
    uid = replace_domain(story, "a")
    without(story, "b", 5)
    assert not run_on(story, "a", uid)
    story.settle(4)
    assert not run_on(story, "a", uid), "b has said that it holds the number"
    story.all_processes_end(machine, 0)
    story.settle(4)
    assert run_on(story, "a", uid)
    assert story.world.leaks() == []


def test_a_member_that_says_nothing_keeps_numbers_resting(story: ReuseMachine) -> None:
    assert run_on(story, "b", bind(story, "b"))
    uid = replace_domain(story, "a")
    without(story, "b", 5)
    assert not run_on(story, "a", uid)
    assert story.world.leaks() == []


def test_one_that_is_leaving_counts_until_all_others_run_without_it(story: ReuseMachine) -> None:
    assert run_on(story, "b", bind(story, "b"))
    story.a_node_object_is_deleted(story.world.machines["b"], 0)
    uid = replace_domain(story, "a")
    alone(story, "a")
    assert not run_on(story, "a", uid)
    story.settle(4)
    assert run_on(story, "a", uid)
    assert story.world.leaks() == []
