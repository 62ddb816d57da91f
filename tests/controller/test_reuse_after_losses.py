"""Channel reuse: stories of programs, Nodes and partitions that are lost at a bad moment."""

from msgspec import structs

from imex_dra.api.nvlinkpartition import CHANNELS_REUSABLE
from imex_dra.hardware.protocol import Reading
from imex_dra.kube.conditions import find_condition
from imex_dra.node.report import make_report
from tests.controller.partition import HERE
from tests.controller.reusemodel import NodeProgram
from tests.controller.test_reuse_model import ReuseMachine
from tests.controller.test_reuse_stories import bind, late_commit, replace_domain, run_on, story

__all__ = ["story"]


def test_a_raised_fence_without_a_report_is_no_acknowledgment(story: ReuseMachine) -> None:
    """The program is killed between the two. The next one has not read the hardware yet, and must not acknowledge
    with the old report.
    """
    model, b = story.model, story.model.machines["b"]
    assert run_on(story, "b", bind(story, "b"))
    uid = replace_domain(story, "a")
    for _ in range(2):
        model.reconcile(model.current_view(), HERE)
    program = b.programs[0]
    model.watch(b, program)
    model.begin_report(b, program)
    program.report = None
    assert b.nvlink_node is not None
    starting = structs.replace(b.snapshot(NodeProgram()), reading=Reading())
    report = make_report(b.prepared, starting, b.nvlink_node.status, model.now)
    b.nvlink_node, b.version = structs.replace(b.nvlink_node, status=report.status), b.version + 1
    story.settle(4)
    run_on(story, "a", uid)
    assert model.leaks() == []


def test_a_partition_that_was_recovered_long_ago_assigns_although_a_daemon_is_down(story: ReuseMachine) -> None:
    model, b = story.model, story.model.machines["b"]
    assert run_on(story, "b", bind(story, "b"))
    story.a_partition_is_lost(model.machines["a"], 0)
    story.settle(6)
    story.all_processes_end(b, 0)
    story.settle(4)
    b.daemon = None
    uid = replace_domain(story, "a")
    for _ in range(8):
        for name in "acd":
            story.a_node_program_works(model.machines[name], 0)
        model.watch(b, b.programs[0])
        model.begin_report(b, b.programs[0])
        model.write_report(b, b.programs[0])
        story.a_controller_works(b, 0)
    assert run_on(story, "a", uid)


def test_a_returning_node_gets_no_channel_while_its_daemon_runs_with_an_old_member_list(
    story: ReuseMachine,
) -> None:
    model, a, b = story.model, story.model.machines["a"], story.model.machines["b"]
    assert run_on(story, "b", bind(story, "a", "b"))
    story.a_node_object_is_deleted(a, 0)
    story.a_node_object_is_deleted(b, 0)
    story.a_controller_works(a, 0)
    uid = replace_domain(story, "a")
    a.has_node = True
    for _ in range(6):
        model.watch(a, a.programs[0])
        model.begin_report(a, a.programs[0])
        model.write_report(a, a.programs[0])
        story.a_controller_works(a, 0)
    run_on(story, "a", uid)
    assert model.leaks() == []
    partition = model.partitions[HERE]
    condition = find_condition(partition.status.conditions, CHANNELS_REUSABLE) if partition else None
    assert condition is not None
    assert (condition.reason, condition.status) == ("MemberListsOutdated", "False")
    assert "contain nodes that have left: a; check that imex node and" in condition.message


def test_a_fence_of_a_lost_partition_acknowledges_nothing_in_the_recovered_one() -> None:
    story = ReuseMachine()
    story.start(3)
    try:
        _fence_of_a_lost_partition(story)
    finally:
        story.teardown()


def _fence_of_a_lost_partition(story: ReuseMachine) -> None:
    model, a, b = story.model, story.model.machines["a"], story.model.machines["b"]

    def demanded_on(node: str) -> str:
        uid = model.create_domain()
        model.claims.add((uid, node))
        return uid

    gone, running = demanded_on("a"), demanded_on("b")
    story.settle(3)
    model.delete_domain(gone)
    model.reconcile(model.current_view(), HERE)
    next_one = demanded_on("a")
    model.reconcile(model.current_view(), HERE)
    program = b.programs[0]
    model.watch(b, program)
    model.begin_report(b, program)
    program.report = None
    commit = late_commit(story, "b", running)
    story.a_partition_is_lost(a, 0)
    for uid in (running, next_one):
        model.delete_domain(uid)
    story.a_controller_works(a, 0)
    newcomers = [demanded_on("a"), demanded_on("a")]
    story.settle(6)
    for uid in newcomers:
        run_on(story, "a", uid)
    commit()
    assert model.leaks() == []


def test_an_outdated_watch_grants_nothing_after_the_checkpoint_was_lost(story: ReuseMachine) -> None:
    """The fence is lost with the checkpoint; only the live read of the partition is left."""
    model, b = story.model, story.model.machines["b"]
    deleted = bind(story, "a", "b")
    second = NodeProgram()
    model.watch(b, second)
    assert run_on(story, "a", bind(story, "a"))
    story.a_checkpoint_is_corrupted(b, 0)
    model.begin_prepare(b, second, deleted)
    for _ in second.prepares:
        model.commit_prepare(b, second, 0)
    assert model.leaks() == []
