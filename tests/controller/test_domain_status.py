"""What a ComputeDomain says of itself, for every state its nodes can be in."""

from datetime import UTC, datetime

import pytest

from imex_dra.api.computedomain import (
    MAX_LISTED_NODES,
    READY,
    ComputeDomain,
    ComputeDomainStatus,
    DomainPartition,
    DomainSummary,
    Readiness,
)
from imex_dra.api.meta import Condition
from imex_dra.api.nvlinknode import FabricState, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    ChannelState,
    DomainReference,
    MemberState,
    NVLinkPartition,
)
from imex_dra.controller.domainstatus import domain_status
from imex_dra.kube.conditions import find_condition
from tests.controller.claims import domain
from tests.controller.partition import ELSEWHERE, HERE, card, member, partition

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def assigned(channel: int, uid: str = "uid-job", state: ChannelState = ChannelState.ASSIGNED) -> ChannelAssignment:
    return ChannelAssignment(channel, state, DomainReference("team", "job", uid), since="2026-01-01T00:00:00Z")


def connected(node: str, *slots: int) -> NVLinkNode:
    return card(node, state=ImexState.READY, connected=slots)


def status(
    nodes: list[str],
    *partitions: NVLinkPartition,
    cards: tuple[NVLinkNode, ...] = (),
    of: ComputeDomain | None = None,
    conditions: tuple[Condition, ...] = (),
) -> ComputeDomainStatus:
    return domain_status(
        of or domain(),
        nodes,
        cards={c.metadata.name: c for c in cards},
        partitions=partitions,
        conditions=conditions,
        now=NOW,
    )


def verdict(result: ComputeDomainStatus) -> tuple[Readiness, str, str]:
    condition = find_condition(result.conditions, READY)
    assert condition is not None
    assert condition.status == str(result.status is Readiness.READY)
    assert condition.observed_generation == 3
    return result.status, condition.reason, condition.message


def test_without_pods_it_is_ready_and_says_that_nobody_came() -> None:
    result = status([])
    assert verdict(result) == (Readiness.READY, "NoPodsYet", "no pod has claimed a channel yet")
    assert result.summary == DomainSummary("0/0", "0", "")


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([], (Readiness.NOT_READY, "FewerNodes", "0 of the 2 nodes that numNodes asks for hold a claim")),
        (["a"], (Readiness.NOT_READY, "FewerNodes", "1 of the 2 nodes that numNodes asks for hold a claim")),
        (["a", "b"], (Readiness.READY, "NodesReady", "2 of 2 nodes with a claim are ready")),
        (["a", "b", "c"], (Readiness.READY, "NodesReady", "3 of 3 nodes with a claim are ready")),
    ],
)
def test_num_nodes_is_what_must_be_there_at_least(nodes: list[str], expected: tuple[Readiness, str, str]) -> None:
    members = [member(node, slot) for slot, node in enumerate("abc")]
    cards = tuple(connected(node, 0, 1, 2) for node in "abc")
    result = status(nodes, partition(*members, channels=(assigned(7),)), cards=cards, of=domain(num_nodes=2))
    assert verdict(result) == expected
    assert result.summary.nodes == f"{len(nodes)}/{max(len(nodes), 2)}"


@pytest.mark.parametrize("state", [state for state in MemberState if state is not MemberState.READY])
def test_a_node_that_is_not_a_ready_member_makes_it_not_ready(state: MemberState) -> None:
    here = partition(member("a", 0), member("b", 1, state), channels=(assigned(7),))
    result = status(["a", "b"], here, cards=(connected("a", 1), connected("b", 0)))
    assert verdict(result) == (Readiness.NOT_READY, "NodesNotReady", "1 of 2 nodes with a claim are not ready: b")
    assert [(node.name, node.status) for node in result.nodes] == [
        ("b", Readiness.NOT_READY),
        ("a", Readiness.READY),
    ]


def test_nodes_that_are_ready_but_not_connected_with_each_other_are_not_ready() -> None:
    here = partition(member("a", 0), member("b", 1), member("c", 2), channels=(assigned(7),))
    result = status(["a", "b"], here, cards=(connected("a", 1, 2), connected("b", 2), connected("c", 0, 1)))
    assert verdict(result)[2] == "1 of 2 nodes with a claim are not ready: b"


def test_a_node_without_a_claim_does_not_count() -> None:
    here = partition(
        member("a", 0), member("b", 1), member("c", 2, MemberState.NOT_READY), channels=(assigned(7),)
    )
    result = status(["a", "b"], here, cards=(connected("a", 1), connected("b", 0)))
    assert result.status is Readiness.READY
    assert [node.name for node in result.nodes] == ["a", "b"]


def test_nodes_of_two_partitions_need_no_connection_between_them() -> None:
    here = partition(member("a", 0), channels=(assigned(7),))
    there = partition(member("b", 0), channels=(assigned(9),), name=ELSEWHERE)
    result = status(["a", "b"], here, there, cards=(connected("a"), connected("b")))
    assert result.status is Readiness.READY
    assert result.partitions == (DomainPartition(HERE, 7, 1, 1), DomainPartition(ELSEWHERE, 9, 1, 1))
    assert result.summary == DomainSummary("2/2", "2", "7,9")


def test_a_node_proven_to_have_no_fabric_is_ready_as_it_is() -> None:
    plain = card("a", fabric=FabricState.NONE, partition="")
    result = status(["a"], cards=(plain,))
    assert verdict(result)[:2] == (Readiness.READY, "NodesReady")
    assert [(node.clique_id, node.index, node.ip_address) for node in result.nodes] == [("", -1, "")]


@pytest.mark.parametrize("fabric", [FabricState.PENDING, FabricState.BROKEN])
def test_a_node_whose_fabric_is_not_known_to_be_none_is_not_ready(fabric: FabricState) -> None:
    assert status(["a"], cards=(card("a", fabric=fabric, partition=""),)).status is Readiness.NOT_READY
    assert status(["a"]).status is Readiness.NOT_READY


def test_a_channel_that_was_given_back_or_is_anothers_is_not_listed() -> None:
    channels = (assigned(3, state=ChannelState.RESTING), assigned(4, uid="uid-other"), assigned(5))
    result = status(["a"], partition(member("a", 0), channels=channels), cards=(connected("a"),))
    assert [held.channel for held in result.partitions] == [5]


def test_a_node_that_moved_is_shown_where_it_is_now() -> None:
    left = partition(member("a", 3, MemberState.LEAVING, left=2))
    joined = partition(member("a", 1), channels=(assigned(9),), name=ELSEWHERE)
    for partitions in ((left, joined), (joined, left)):
        (entry,) = status(["a"], *partitions, cards=(connected("a"),)).nodes
        assert (entry.clique_id, entry.index, entry.ip_address) == (ELSEWHERE, 1, "10.0.0.a")


def test_of_600_nodes_512_are_listed_with_the_not_ready_ones_first_and_five_are_named() -> None:
    names = [f"n{number:03d}" for number in range(600)]
    silent = set(names[-7:])
    plain = tuple(card(name, fabric=FabricState.NONE, partition="") for name in names if name not in silent)
    result = status(names, cards=plain)
    assert len(result.nodes) == MAX_LISTED_NODES == 512
    assert result.nodes_omitted == 88
    assert {node.name for node in result.nodes[:7]} == silent
    assert result.summary.nodes == "593/600"
    assert verdict(result)[2] == (
        "7 of 600 nodes with a claim are not ready: n593, n594, n595, n596, n597 and 2 more"
    )


def test_the_other_conditions_stay_and_the_time_moves_only_with_the_status() -> None:
    other = Condition("Accepted", "True", "Accepted", "2025-01-01T00:00:00Z")
    since = Condition(READY, "True", "NodesReady", "2025-01-01T00:00:00Z")
    result = status([], conditions=(other, since))
    assert result.conditions[0] == other
    assert result.conditions[1].last_transition_time == "2025-01-01T00:00:00Z"
    assert status(["a"], conditions=(since,)).conditions[0].last_transition_time == "2026-01-01T00:00:00Z"


def test_a_node_where_the_domain_has_no_channel_is_not_ready() -> None:
    result = status(["a"], partition(member("a", 0)), cards=(connected("a"),))
    assert verdict(result) == (Readiness.NOT_READY, "NodesNotReady", "1 of 1 nodes with a claim are not ready: a")
