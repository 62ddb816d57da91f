"""What an NVLinkPartition says about itself: the cause, not those who notice it."""

from typing import Any

import pytest
from msgspec import structs

from imex_dra.api import partitionreasons
from imex_dra.api.meta import Condition
from imex_dra.api.nvlinknode import Fabric, FabricState, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import Member, MemberState, NVLinkPartitionStatus, PartitionState
from imex_dra.controller.partitionconditions import Problems, conditions, culprits_of, summary
from tests.controller.partition import NOW, member, nvlink_node

SINCE = "2026-11-17T12:03:44Z"
RACK = tuple(member(node, index) for index, node in enumerate("abcde"))


def report(node: str, unreachable: str = "", **more: Any) -> NVLinkNode:
    index = "abcde".index(node)
    return nvlink_node(node, index=index, state=ImexState.READY, unreachable=tuple(unreachable), **more)


def reports(**unreachable: str) -> dict[str, NVLinkNode]:
    """Of the whole rack; `unreachable` by node."""
    return {node: report(node, unreachable.get(node, "")) for node in "abcde"}


def states(changed: Member, members: tuple[Member, ...] = RACK) -> tuple[Member, ...]:
    return tuple(changed if one.node == changed.node else one for one in members)


def found(
    members: tuple[Member, ...],
    nvlink_nodes: dict[str, NVLinkNode],
    before: tuple[Condition, ...] = (),
    problems: Problems = Problems(),  # noqa: B008 - immutable
) -> dict[str, Condition]:
    after = conditions(
        before,
        NVLinkPartitionStatus(members=members),
        nvlink_nodes,
        problems,
        channel_count=0,
        generation=4,
        now=NOW,
    )
    return {condition.type: condition for condition in after}


def said(members: tuple[Member, ...], nvlink_nodes: dict[str, NVLinkNode]) -> dict[str, tuple[str, str]]:
    return {name: (one.status, one.message) for name, one in found(members, nvlink_nodes).items()}


def state(members: tuple[Member, ...], nvlink_nodes: dict[str, NVLinkNode]) -> tuple[str, PartitionState]:
    planned = summary(NVLinkPartitionStatus(members=members), nvlink_nodes)
    return planned.nodes, planned.state


def test_a_rack_without_problems_is_ready() -> None:
    assert said(RACK, reports()) == {"Ready": ("True", "5 of 5 members are ready and connected")}
    assert state(RACK, reports()) == ("5/5", PartitionState.UP)


def test_a_dead_node_is_named_and_those_that_cannot_reach_it_are_not() -> None:
    members = states(member("c", 2, MemberState.UNKNOWN, since=SINCE))
    witnesses = reports(a="c", b="c", d="c", e="c")
    assert said(members, witnesses) == {"Ready": ("False", "c has been unreachable since 2026-11-17 12:03 UTC")}
    assert state(members, witnesses) == ("4/5", PartitionState.DEGRADED)


def test_a_suspended_member_does_not_make_the_partition_not_ready() -> None:
    members = states(member("c", 2, MemberState.SUSPENDED, since=SINCE))
    assert said(members, reports(a="c", b="c", d="c", e="c")) == {
        "Ready": (
            "True",
            "4 members are ready and connected; suspended: c since 2026-11-17 12:03 UTC; for a node that will not"
            " return, delete its Node object or run imex forget-node",
        )
    }
    assert state(members, reports()) == ("4/5", PartitionState.DEGRADED)


def test_two_live_members_that_cannot_reach_each_other_are_a_pair() -> None:
    for cut in (reports(b="d", d="b"), reports(b="d"), reports(d="b")):
        assert said(RACK, cut) == {
            "Ready": ("False", "b and d cannot reach each other"),
            "NotConnected": (
                "True",
                "b and d cannot reach each other; check the network between the IMEX daemons",
            ),
        }
        assert state(RACK, cut) == ("5/5", PartitionState.DEGRADED)


def test_a_live_member_that_several_others_cannot_reach_is_the_cause() -> None:
    ready = found(RACK, reports(a="c", b="c", e="c"))["Ready"]
    assert ready.message == "several members cannot reach c, although its Node is Ready"


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], ([], [])),
        ([("a", "b")], ([], [("a", "b")])),
        ([("a", "c"), ("b", "c"), ("d", "e")], (["c"], [("d", "e")])),
        ([("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")], (["a", "b"], [])),
    ],
)
def test_the_members_with_most_broken_pairs_explain_them(
    pairs: list[tuple[str, str]], expected: tuple[list[str], list[tuple[str, str]]]
) -> None:
    assert culprits_of(pairs) == expected


def changed(node: str, **fields: Any) -> NVLinkNode:
    one = report(node)
    return structs.replace(one, status=structs.replace(one.status, **fields))


@pytest.mark.parametrize(
    ("state", "nvlink_node", "message"),
    [
        (MemberState.UNKNOWN, None, "c has not reported since 2026-11-17 12:03 UTC"),
        (MemberState.UNKNOWN, changed("c", partition=""), "c has not reported since 2026-11-17 12:03 UTC"),
        (MemberState.JOINING, report("c"), "c is joining"),
        (
            MemberState.NOT_READY,
            changed("c", fabric=Fabric(FabricState.BROKEN, "3 of 18 links are down")),
            "c is not ready: 3 of 18 links are down",
        ),
        (
            MemberState.NOT_READY,
            changed("c", conditions=(Condition("Ready", "False", "Any", "", "the disk is full"),)),
            "c is not ready: the disk is full",
        ),
        (
            MemberState.NOT_READY,
            changed("c", imex_state=ImexState.INITIALIZING),
            "c is not ready: its IMEX daemon is INITIALIZING, with index 2",
        ),
    ],
    ids=["no report", "partial report", "joining", "fabric", "condition", "daemon"],
)
def test_the_message_says_what_is_wrong_with_the_member(
    state: MemberState, nvlink_node: NVLinkNode | None, message: str
) -> None:
    everybody = {node: one for node, one in reports().items() if node != "c"}
    everybody |= {"c": nvlink_node} if nvlink_node else {}
    ready = found(states(member("c", 2, state, since=SINCE)), everybody)["Ready"]
    assert (ready.status, ready.reason, ready.message) == ("False", "MembersNotReady", message)


def test_groups_of_driver_versions_are_named_the_largest_first() -> None:
    versions = {node: report(node, driver_version="580.2" if node in "bc" else "580.1") for node in "abcde"}
    skew = found(RACK, versions)["VersionSkew"]
    assert (skew.status, skew.reason) == ("True", "SeveralVersions")
    assert "580.1 on a, d, e; 580.2 on b, c; install one version" in skew.message
    same = {node: report(node, driver_version="580.1") for node in "abcde"}
    after = found(RACK, same, (skew,))["VersionSkew"]
    assert (after.status, after.reason, after.observed_generation) == ("False", "OneVersion", 4)
    assert "VersionSkew" not in found(RACK, same)


def test_members_that_offer_different_numbers_of_channels_are_named() -> None:
    counts = {node: report(node, channel_count=1024 if node == "b" else 2048) for node in "abcde"}
    skew = found(RACK, counts)["ChannelSkew"]
    assert (skew.status, skew.reason) == ("True", "SeveralChannelCounts")
    assert "2048 on a, c, d, e; 1024 on b; load the GPU driver" in skew.message
    same = {node: report(node, channel_count=2048) for node in "abcde"} | {"b": report("b", channel_count=0)}
    after = found(RACK, same, (skew,))["ChannelSkew"]
    assert (after.status, after.reason) == ("False", "OneChannelCount")
    assert "ChannelSkew" not in found(RACK, same)


def test_a_partition_without_members_is_not_ready() -> None:
    assert said((), {}) == {"Ready": ("False", "this partition has no members")}


HELD = partitionreasons.channels_held(count=1, blockers=["c holds channel 7"])
WITHOUT_INDEX = partitionreasons.no_index(node="f", partition="p", max_nodes=5)


@pytest.mark.parametrize(
    ("type_", "members", "nvlink_nodes", "problems", "expected"),
    [
        (
            "NotConnected",
            RACK,
            reports(b="d"),
            Problems(),
            ("True", "MembersNotConnected", "False", "MembersConnected"),
        ),
        (
            "ChannelsReusable",
            RACK,
            reports(),
            Problems(reuse=HELD),
            ("False", "ChannelsHeld", "True", "ChannelsReusable"),
        ),
        (
            "NodesAdmitted",
            RACK,
            reports(),
            Problems(admission=WITHOUT_INDEX),
            ("False", "NoIndex", "True", "NodesAdmitted"),
        ),
        ("DeletionBlocked", RACK, reports(), Problems(is_deleting=True), ("True", "InUse", "False", "Unused")),
        ("Ready", (), {}, Problems(), ("False", "NoMembers", "True", "MembersReady")),
        (
            "Ready",
            states(member("c", 2, MemberState.SUSPENDED, since=SINCE)),
            reports(),
            Problems(),
            ("True", "MemberSuspended", "True", "MembersReady"),
        ),
    ],
)
def test_a_condition_stays_and_has_another_reason_when_its_problem_is_over(
    type_: str,
    members: tuple[Member, ...],
    nvlink_nodes: dict[str, NVLinkNode],
    problems: Problems,
    expected: tuple[str, str, str, str],
) -> None:
    first = found(members, nvlink_nodes, problems=problems)
    after = found(RACK, reports(), tuple(first.values()))
    assert (first[type_].status, first[type_].reason, after[type_].status, after[type_].reason) == expected
