"""Channels are used again: stories of programs, Nodes and records that are lost at a bad moment."""

from msgspec import structs

from imex_dra.api.nvlinkpartition import CHANNELS_FREE
from imex_dra.hardware.protocol import Reading
from imex_dra.kube.conditions import find_condition
from imex_dra.node.card import card_status
from imex_dra.node.cards import promised
from tests.controller.partition import HERE
from tests.controller.test_channel_reuse import ReuseMachine
from tests.controller.test_reuse_stories import bind, late_grant, replace_domain, run_on, story

__all__ = ["story"]


def test_a_program_killed_between_promise_and_card_is_no_answer(story: ReuseMachine) -> None:
    """The next one, which has read nothing of the node yet, must not answer with what the old card says."""
    world, b = story.world, story.world.machines["b"]
    assert run_on(story, "b", bind(story, "b"))
    uid = replace_domain(story, "a")
    for _ in range(2):
        world.write(world.look(), HERE)
    program = b.programs[0]
    world.watch(b, program)
    world.answer(b, program)
    program.answer = None
    assert b.card is not None
    starting = structs.replace(b.knowledge(None), reading=Reading())
    status = card_status(starting, "10.0.0.b", promised(b.ledger, starting), b.card.status)
    b.card, b.version = structs.replace(b.card, status=status), b.version + 1
    story.settle(4)
    run_on(story, "a", uid)
    assert world.leaks() == []


def test_one_daemon_that_is_down_closes_no_rack_whose_record_was_lost_long_ago(story: ReuseMachine) -> None:
    world, b = story.world, story.world.machines["b"]
    assert run_on(story, "b", bind(story, "b"))
    story.a_record_is_lost(world.machines["a"], 0)
    story.settle(6)
    story.all_processes_end(b, 0)
    story.settle(4)
    b.daemon = None
    uid = replace_domain(story, "a")
    for _ in range(8):
        for name in "acd":
            story.a_node_catches_up(world.machines[name], 0)
        world.watch(b, b.programs[0])
        world.answer(b, b.programs[0])
        world.publish(b, b.programs[0])
        story.a_controller_works(b, 0)
    assert run_on(story, "a", uid)


def test_a_node_that_comes_back_gets_nothing_while_its_daemon_runs_with_the_old_list(story: ReuseMachine) -> None:
    world, a, b = story.world, story.world.machines["a"], story.world.machines["b"]
    assert run_on(story, "b", bind(story, "a", "b"))
    story.a_node_object_is_deleted(a, 0)
    story.a_node_object_is_deleted(b, 0)
    story.a_controller_works(a, 0)
    uid = replace_domain(story, "a")
    a.exists = True
    for _ in range(6):
        world.watch(a, a.programs[0])
        world.answer(a, a.programs[0])
        world.publish(a, a.programs[0])
        story.a_controller_works(a, 0)
    run_on(story, "a", uid)
    assert world.leaks() == []
    record = world.records[HERE]
    said = find_condition(record.status.conditions, CHANNELS_FREE) if record else None
    assert said is not None
    assert (said.reason, said.status) == ("ListsOld", "False")
    assert "are in older ones: a; check that imex daemon runs" in said.message


def test_a_promise_to_the_lost_record_is_no_answer_to_the_new_one() -> None:
    story = ReuseMachine()
    story.start(3)
    try:
        _promise_to_a_lost_record(story)
    finally:
        story.teardown()


def _promise_to_a_lost_record(story: ReuseMachine) -> None:
    world, a, b = story.world, story.world.machines["a"], story.world.machines["b"]

    def wanted(node: str) -> str:
        uid = world.add_domain()
        world.claims.add((uid, node))
        return uid

    gone, living = wanted("a"), wanted("b")
    story.settle(3)
    world.delete_domain(gone)
    world.write(world.look(), HERE)
    next_one = wanted("a")
    world.write(world.look(), HERE)
    program = b.programs[0]
    world.watch(b, program)
    world.answer(b, program)
    program.answer = None
    enter = late_grant(story, "b", living)
    story.a_record_is_lost(a, 0)
    for uid in (living, next_one):
        world.delete_domain(uid)
    story.a_controller_works(a, 0)
    newcomers = [wanted("a"), wanted("a")]
    story.settle(6)
    for uid in newcomers:
        run_on(story, "a", uid)
    enter()
    assert world.leaks() == []
