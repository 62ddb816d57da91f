"""Reports that cannot be true, and what they cost."""

from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.limits import MAX_COUNTER, MAX_REPORTED_COUNTER
from imex_dra.api.nvlinknode import FabricState, HeldChannel, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    ChannelState,
    DomainReference,
    Member,
    MemberState,
    NVLinkPartitionStatus,
)
from imex_dra.controller.plausibility import (
    Counters,
    channel_count,
    contradicted_moves,
    implausible_reports,
)
from tests.controller.partition import ELSEWHERE, HERE, member, nvlink_node

STATUS = NVLinkPartitionStatus(generation=5, epoch=3, members=(member("a", 0), member("b", 1)))
RECOVERING = structs.replace(STATUS, pending_reports=("a",))
OF_THREE = structs.replace(STATUS, members=(*STATUS.members, member("c", 2)))


def report(node: str, acknowledged: int = 3, applied: int = 5, **more: Any) -> NVLinkNode:
    return nvlink_node(node, acknowledged=acknowledged, applied=applied, state=ImexState.READY, **more)


def by_name(*nvlink_nodes: NVLinkNode) -> dict[str, NVLinkNode]:
    return {one.metadata.name: one for one in nvlink_nodes}


HIGH = report("b", acknowledged=99)


@pytest.mark.parametrize(
    ("status", "reports", "known", "expected"),
    [
        (STATUS, [report("a"), report("b")], Counters(3, 5), set()),
        (STATUS, [report("a"), report("b", acknowledged=4)], Counters(3, 5), {"b"}),
        (STATUS, [report("a"), report("b", applied=6)], Counters(3, 5), {"b"}),
        (STATUS, [report("a", acknowledged=9), HIGH], Counters(3, 5), {"a", "b"}),
        (STATUS, [report("a", acknowledged=9), HIGH], Counters(9, 5), {"b"}),
        (STATUS, [report("a"), HIGH], None, {"b"}),
        (STATUS, [report("a"), HIGH], Counters(2, 5), {"b"}),
        (STATUS, [report("a"), report("b", acknowledged=4)], None, set()),
        (STATUS, [report("a", acknowledged=98), HIGH], None, set()),
        (OF_THREE, [report("a"), HIGH, report("c")], None, {"b"}),
        (OF_THREE, [report("a"), HIGH, report("c", acknowledged=98)], None, set()),
        (STATUS, [report("a"), report("b", applied=9)], None, set()),
        (STATUS, [report("a", partition=ELSEWHERE), HIGH], None, set()),
        (STATUS, [report("a"), report("b", applied=106)], None, {"b"}),
        (STATUS, [report("a", applied=9), report("b", applied=106)], None, set()),
        (RECOVERING, [report("a"), HIGH], None, set()),
        (RECOVERING, [report("a"), HIGH], Counters(3, 5), {"b"}),
        (NVLinkPartitionStatus(), [report("a"), HIGH], None, set()),
        (RECOVERING, [report("a"), report("b", acknowledged=MAX_REPORTED_COUNTER + 1)], None, {"b"}),
        (NVLinkPartitionStatus(), [report("b", applied=MAX_COUNTER)], None, {"b"}),
    ],
    ids=[
        "nothing above the status",
        "an epoch above what this leader wrote",
        "a member list above what this leader wrote",
        "all above what this leader wrote",
        "a restored status: only above what this leader wrote",
        "a new leader: a live member contradicts it",
        "a status of another leader: a live member contradicts it",
        "a new leader: one epoch ahead is possible",
        "a new leader: all say so",
        "a new leader: two live members contradict it",
        "a new leader: two say so, and the third one has been Suspended",
        "a new leader: a later member list is possible",
        "a new leader: the other member is elsewhere",
        "a new leader: live members contradict the member list",
        "a new leader: a live member has a later list, too",
        "a new leader: the partition recovers",
        "the partition recovers, and this leader has reset it",
        "the status was lost",
        "too large even then: epoch",
        "too large even then: member list",
    ],
)
def test_a_report_above_the_status_is_believed_only_if_the_status_can_have_been_lost(
    status: NVLinkPartitionStatus, reports: list[NVLinkNode], known: Counters | None, expected: set[str]
) -> None:
    assert implausible_reports(HERE, status, by_name(*reports), set(), known).keys() == expected


@pytest.mark.parametrize(
    ("status", "not_ready"),
    [
        (STATUS, {"a"}),
        (structs.replace(STATUS, members=(member("a", 0, MemberState.SUSPENDED), member("b", 1))), set()),
    ],
    ids=["its Node is not Ready", "it is suspended"],
)
def test_a_member_that_is_not_alive_contradicts_nobody(status: NVLinkPartitionStatus, not_ready: set[str]) -> None:
    assert implausible_reports(HERE, status, by_name(report("a"), HIGH), not_ready, None) == {}


def test_a_channel_that_the_leader_has_not_assigned_is_invented() -> None:
    """Unless the status is not the one that the leader wrote: then it was restored, and the node is right."""
    holder = report("b", held=(HeldChannel(HERE, 7, "job"),))
    reports = by_name(report("a"), holder)
    assert implausible_reports(HERE, STATUS, reports, set(), Counters.of(STATUS)).keys() == {"b"}
    assigned = ChannelAssignment(7, ChannelState.ASSIGNED, DomainReference("team", "job", "job"), "")
    written = structs.replace(STATUS, channels=(assigned,))
    assert implausible_reports(HERE, STATUS, reports, set(), Counters.of(written)) == {}
    assert implausible_reports(HERE, written, reports, set(), Counters.of(written)) == {}
    assert implausible_reports(HERE, STATUS, reports, set(), None) == {}


def test_the_message_names_the_node_and_both_values() -> None:
    found = implausible_reports(HERE, STATUS, by_name(report("a"), HIGH), set(), Counters(3, 5))
    assert found["b"].message() == (
        f"node b reports epoch 99 and member list 5, but NVLink partition {HERE} is at epoch 3 and member list 5:"
        " its report is ignored, and it cannot be a member until it reports something else; check that imex node"
        " on it is the real one; then drain the node, remove its imex-dra.json, and reboot it"
    )


MOVED = nvlink_node("b", partition=ELSEWHERE)
NO_FABRIC = nvlink_node("b", partition="", fabric=FabricState.NONE)


@pytest.mark.parametrize(
    ("members", "a", "not_ready", "expected"),
    [
        (STATUS.members, report("a"), set(), {"b": "a"}),
        (STATUS.members, report("a", unreachable=("b",)), set(), {}),
        (STATUS.members, report("a"), {"a"}, {}),
        (STATUS.members, report("a", partition=ELSEWHERE), set(), {}),
        (STATUS.members, nvlink_node("a", state=ImexState.UNAVAILABLE), set(), {}),
        ((member("a", 0, MemberState.NOT_READY), member("b", 1)), report("a"), set(), {}),
        ((member("a", 0), member("b", 1, MemberState.LEAVING)), report("a"), set(), {}),
    ],
    ids=[
        "a live member reaches it",
        "no live member reaches it",
        "the Node of the other is not Ready",
        "the other has moved too",
        "the daemon of the other does not run",
        "the other is not ready",
        "it is leaving already",
    ],
)
def test_a_move_is_contradicted_by_a_live_member_that_still_reaches_the_node(
    members: tuple[Member, ...], a: NVLinkNode, not_ready: set[str], expected: dict[str, str]
) -> None:
    assert contradicted_moves(HERE, members, by_name(a, MOVED), not_ready) == expected
    assert contradicted_moves(HERE, members, by_name(a, NO_FABRIC), not_ready) == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, 2048),
        ({"a": 9}, 9),
        ({"a": 9, "b": 0}, 9),
        ({"a": 9, "b": 7}, 7),
        ({"a": 9, "b": 1, "c": 9}, 9),
        ({"a": 9, "b": 1, "c": 9, "x": 1, "y": 1}, 9),
    ],
    ids=["no report", "one", "one does not know", "two", "one of three is low", "others are no members"],
)
def test_the_channel_count_is_the_lower_median_of_the_members(counts: dict[str, int], expected: int) -> None:
    members = [member(node, index) for index, node in enumerate("abc")]
    reports = by_name(*(nvlink_node(node, channel_count=count) for node, count in counts.items()))
    assert channel_count(members, reports) == expected
