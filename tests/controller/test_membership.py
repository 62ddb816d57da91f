"""Which nodes join a partition, keep their index, or leave, and on what evidence."""

import pytest
from msgspec import structs

from imex_dra.api.nvlinknode import FabricState, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import Member, MemberState
from imex_dra.controller.liveness import Liveness
from imex_dra.controller.membership import MemberInputs, MemberPlan, plan_members
from tests.controller.partition import ELSEWHERE, HERE, NOW, member, nvlink_node, undated


def plan(
    current: MemberPlan, *nvlink_nodes: NVLinkNode, nodes: set[str] | None = None, max_nodes: int = 4
) -> tuple[MemberPlan, dict[str, Member]]:
    """`nodes`: the Nodes that exist; by default those with an NVLinkNode."""
    by_node = {report.metadata.name: report for report in nvlink_nodes}
    existing = by_node.keys() if nodes is None else nodes
    planned = plan_members(current, MemberInputs(HERE, max_nodes, by_node, existing, Liveness(NOW)))
    return planned, {m.node: undated(m) for m in planned.members}


def ready(node: str, index: int, applied: int) -> NVLinkNode:
    return nvlink_node(node, index=index, state=ImexState.READY, applied=applied)


EMPTY = MemberPlan((), 0)
PAIR = MemberPlan((member("a", 0), member("b", 1)), 5)
LEAVING = MemberState.LEAVING


def test_new_members_get_the_lowest_free_indexes_in_the_order_of_their_names() -> None:
    planned, members = plan(EMPTY, nvlink_node("c"), nvlink_node("a"), nvlink_node("b"))
    assert [(m.node, m.index, m.state) for m in planned.members] == [
        ("a", 0, MemberState.JOINING),
        ("b", 1, MemberState.JOINING),
        ("c", 2, MemberState.JOINING),
    ]
    assert members["a"].address == "10.0.0.a"
    assert planned.generation == 1


@pytest.mark.parametrize(
    "report",
    [
        nvlink_node("x", partition=ELSEWHERE),
        nvlink_node("x", fabric=FabricState.PENDING, partition=""),
        nvlink_node("x", fabric=FabricState.BROKEN),
        nvlink_node("x", fabric=FabricState.NONE, partition=""),
        nvlink_node("x", address=""),
    ],
    ids=["other partition", "fabric pending", "fabric broken", "no fabric", "no address"],
)
def test_a_node_that_is_not_ready_for_this_partition_does_not_join(report: NVLinkNode) -> None:
    assert plan(EMPTY, report)[0] == EMPTY


def test_an_nvlinknode_without_a_node_does_not_join() -> None:
    assert plan(EMPTY, nvlink_node("a"), nodes=set())[0] == EMPTY


@pytest.mark.parametrize(
    ("before", "report", "after"),
    [
        (MemberState.JOINING, nvlink_node("a"), MemberState.JOINING),
        (MemberState.JOINING, nvlink_node("a", index=0, state=ImexState.READY), MemberState.READY),
        (MemberState.JOINING, nvlink_node("a", index=3, state=ImexState.READY), MemberState.JOINING),
        (MemberState.READY, nvlink_node("a", index=3, state=ImexState.READY), MemberState.NOT_READY),
        (
            MemberState.READY,
            nvlink_node("a", index=0, state=ImexState.WAITING_FOR_RECOVERY),
            MemberState.NOT_READY,
        ),
        (MemberState.NOT_READY, nvlink_node("a", index=0, state=ImexState.READY), MemberState.READY),
        (MemberState.READY, nvlink_node("a", fabric=FabricState.PENDING, partition=""), MemberState.UNKNOWN),
        (MemberState.READY, nvlink_node("a", fabric=FabricState.BROKEN), MemberState.NOT_READY),
        (
            MemberState.READY,
            nvlink_node("a", fabric=FabricState.BROKEN, index=0, state=ImexState.READY),
            MemberState.NOT_READY,
        ),
        (MemberState.UNKNOWN, nvlink_node("a", index=0, state=ImexState.READY), MemberState.READY),
        (MemberState.UNKNOWN, nvlink_node("a"), MemberState.NOT_READY),
    ],
)
def test_the_state_of_a_member_follows_its_report_and_its_index_stays(
    before: MemberState, report: NVLinkNode, after: MemberState
) -> None:
    planned, members = plan(MemberPlan((member("a", 0, before),), 5), report)
    assert members["a"] == member("a", 0, after)
    assert planned.generation == 5


def test_a_member_without_an_nvlinknode_is_unknown_and_does_not_leave() -> None:
    planned, members = plan(PAIR, ready("a", 0, 5), nodes={"a", "b"})
    assert members["b"] == member("b", 1, MemberState.UNKNOWN)
    assert planned.generation == 5


@pytest.mark.parametrize(
    ("nvlink_nodes", "nodes"),
    [
        ([ready("a", 0, 5)], {"a"}),
        ([ready("a", 0, 5), nvlink_node("b", partition=ELSEWHERE)], {"a", "b"}),
        ([ready("a", 0, 5), nvlink_node("b", fabric=FabricState.NONE, partition="")], {"a", "b"}),
    ],
    ids=["Node deleted", "NVLinkNode names another partition", "proven to have no fabric"],
)
def test_a_member_leaves_on_positive_evidence_and_the_generation_changes(
    nvlink_nodes: list[NVLinkNode], nodes: set[str]
) -> None:
    planned, members = plan(PAIR, *nvlink_nodes, nodes=nodes)
    assert members["b"] == member("b", 1, LEAVING, left=6)
    assert planned.generation == 6


def test_the_index_of_a_leaving_member_is_free_after_every_daemon_applied_a_list_without_it() -> None:
    current = MemberPlan((member("a", 0), member("b", 1, LEAVING, left=6), member("c", 2)), 6)
    planned, members = plan(current, ready("a", 0, 6), ready("c", 2, 5), nvlink_node("n"), nodes={"a", "c", "n"})
    assert members["b"].state is LEAVING
    assert members["n"].index == 3
    planned, members = plan(planned, ready("a", 0, 7), ready("c", 2, 6), ready("n", 3, 7), nodes={"a", "c", "n"})
    assert "b" not in members
    assert planned.generation == 7
    _, members = plan(planned, ready("a", 0, 7), ready("c", 2, 7), ready("n", 3, 7), nvlink_node("m"))
    assert members["m"].index == 1


@pytest.mark.parametrize(
    "report",
    [[], [nvlink_node("c", fabric=FabricState.PENDING, partition="", applied=5)]],
    ids=["no NVLinkNode", "older list applied"],
)
def test_a_member_does_not_leave_while_another_may_run_with_an_older_list(report: list[NVLinkNode]) -> None:
    current = MemberPlan((member("a", 0), member("b", 1, LEAVING, left=6), member("c", 2)), 6)
    _, members = plan(current, ready("a", 0, 6), *report, nodes={"a", "c"})
    assert members["b"].state is LEAVING


def test_indexes_that_were_never_used_come_first_then_the_one_that_was_freed_longest_ago() -> None:
    current = MemberPlan((member("a", 0), member("b", 1, LEAVING, left=6)), 6, freed_indexes=(2,))
    planned, members = plan(current, ready("a", 0, 6), nvlink_node("n"), nodes={"a", "n"})
    assert (members["n"].index, planned.freed_indexes) == (3, (2, 1))
    planned, members = plan(planned, ready("a", 0, 7), ready("n", 3, 7), nvlink_node("m"))
    assert (members["m"].index, planned.freed_indexes) == (2, (1,))
    _, members = plan(planned, *(ready(m.node, m.index, 8) for m in planned.members), ready("x", 1, 8))
    assert members["x"].index == 1


def test_a_returning_node_gets_its_index_although_it_was_freed_last() -> None:
    current = MemberPlan((member("a", 0),), 6, freed_indexes=(2, 1))
    planned, members = plan(current, ready("a", 0, 6), ready("b", 1, 4))
    assert (members["b"].index, planned.freed_indexes) == (1, (2,))


def test_the_last_member_leaves_at_once() -> None:
    planned, members = plan(MemberPlan((member("a", 0),), 5), nodes=set())
    assert members == {}
    assert planned.generation == 6


def test_a_leaving_member_that_returns_keeps_its_index() -> None:
    current = MemberPlan((member("a", 0), member("b", 1, LEAVING, left=6)), 6)
    planned, members = plan(current, ready("a", 0, 5), nvlink_node("b"))
    assert members["b"] == member("b", 1, MemberState.JOINING)
    assert planned.generation == 7


def test_a_leaving_member_that_returns_without_an_nvlinknode_is_still_leaving() -> None:
    leaving = member("b", 1, LEAVING, left=6)
    planned, members = plan(MemberPlan((member("a", 0), leaving), 6), ready("a", 0, 5), nodes={"a", "b"})
    assert (members["b"], planned.generation) == (leaving, 6)


def test_a_node_that_is_not_admissible_does_not_join_and_a_leaving_member_is_still_leaving() -> None:
    leaving = member("b", 1, LEAVING, left=6)
    nvlink_nodes = {"a": ready("a", 0, 5), "b": nvlink_node("b"), "c": nvlink_node("c")}
    planned = plan_members(
        MemberPlan((member("a", 0), leaving), 6),
        MemberInputs(
            HERE,
            4,
            nvlink_nodes,
            nvlink_nodes.keys(),
            Liveness(NOW),
            is_admissible=lambda nvlink_node: False,
        ),
    )
    assert [undated(m) for m in planned.members] == [member("a", 0), leaving]


def test_a_changed_address_changes_the_generation() -> None:
    planned, members = plan(
        PAIR, ready("a", 0, 5), nvlink_node("b", address="10.9.9.9", index=1, state=ImexState.READY)
    )
    assert members["b"].address == "10.9.9.9"
    assert planned.generation == 6


def test_a_node_without_a_free_index_does_not_displace_a_member() -> None:
    planned, members = plan(PAIR, ready("a", 0, 5), ready("b", 1, 5), nvlink_node("c"), max_nodes=2)
    assert tuple(members.values()) == PAIR.members
    assert (planned.generation, planned.without_index) == (5, ("c",))


def test_after_a_loss_nodes_get_the_indexes_with_which_their_daemons_run() -> None:
    planned, members = plan(EMPTY, ready("a", 2, 7), ready("b", 0, 9), nvlink_node("c"))
    assert {node: member.index for node, member in members.items()} == {"a": 2, "b": 0, "c": 1}
    assert planned.generation == 10
    again, members = plan(planned, ready("a", 2, 10), ready("b", 0, 10), ready("c", 1, 10))
    assert {member.state for member in members.values()} == {MemberState.READY}
    assert again.generation == 10


def test_after_a_restore_generations_continue_above_the_highest_applied_one() -> None:
    old = MemberPlan((member("a", 0), member("b", 1)), 3)
    planned, _ = plan(old, ready("a", 0, 7), ready("b", 1, 7))
    assert planned.generation == 7
    planned, members = plan(old, ready("a", 0, 7), nodes={"a"})
    assert (planned.generation, members["b"]) == (8, member("b", 1, LEAVING, left=8))


def test_of_two_daemons_that_run_with_the_same_index_one_keeps_it() -> None:
    _, members = plan(EMPTY, ready("a", 1, 7), ready("b", 1, 7), ready("c", 9, 7))
    assert {node: member.index for node, member in members.items()} == {"a": 1, "b": 0, "c": 2}


def test_a_generation_of_another_partition_is_ignored() -> None:
    planned, _ = plan(PAIR, ready("a", 0, 5), ready("b", 1, 5), nvlink_node("x", partition=ELSEWHERE, applied=99))
    assert planned.generation == 5


def test_a_member_has_the_boot_id_that_its_node_reported_last() -> None:
    def booted(report: NVLinkNode, boot_id: str) -> NVLinkNode:
        return structs.replace(report, status=structs.replace(report.status, boot_id=boot_id))

    planned, members = plan(EMPTY, booted(nvlink_node("a"), "boot-1"))
    assert members["a"].boot_id == "boot-1"
    planned, members = plan(planned, booted(ready("a", 0, 1), "boot-2"))
    assert (members["a"].boot_id, planned.generation) == ("boot-2", 1), "no daemon needs another list"
    for silent in (booted(ready("a", 0, 1), ""), nvlink_node("a", fabric=FabricState.PENDING, partition="")):
        assert plan(planned, silent)[1]["a"].boot_id == "boot-2"
