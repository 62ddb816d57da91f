"""Which nodes of a ComputeDomain are ready, and what is said about those that are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from imex_dra.api.computedomain import DomainNode, Readiness
from imex_dra.api.meta import Condition
from imex_dra.api.nvlinknode import FabricState, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import (
    CHANNELS_REUSABLE,
    ChannelAssignment,
    ChannelState,
    DomainReference,
    MemberState,
    NVLinkPartition,
)
from imex_dra.controller.domainnodes import channel_obstacle, disconnected_nodes, domain_nodes
from tests.controller.claims import claim, configuration, domain
from tests.controller.partition import ELSEWHERE, HERE, member, nvlink_node, partition

SINCE = "2026-11-17T12:03:00Z"


def assigned(channel: int, uid: str = "uid-job", state: ChannelState = ChannelState.ASSIGNED) -> ChannelAssignment:
    reference = DomainReference("team", "job", uid)
    return ChannelAssignment(channel, state, reference, assigned_at="2026-01-01T00:00:00Z")


def report(node: str, *unreachable: str, index: int = 0, **fields: object) -> NVLinkNode:
    """Of a node that is READY and has prepared the claim of its pod."""
    defaults = {"state": ImexState.READY, "prepared": (f"uid-claim-{node}",), "index": index}
    return nvlink_node(node, unreachable=unreachable, **{**defaults, **fields})  # type: ignore[arg-type]


def with_own_words(nvlink_node: NVLinkNode, message: str) -> NVLinkNode:
    """The node says itself that it cannot serve claims."""
    condition = Condition("Ready", "False", "AnyReason", SINCE, message)
    return structs.replace(nvlink_node, status=structs.replace(nvlink_node.status, conditions=(condition,)))


def entries(
    names: str,
    *partitions: NVLinkPartition,
    reports: tuple[NVLinkNode, ...] = (),
) -> list[DomainNode]:
    """The entries of a ComputeDomain with one pod on each of these nodes."""
    claims = [claim(f"claim-{n}", configuration("uid-job"), nodes=(n,), pods=(f"pod-{n}",)) for n in names]
    return domain_nodes(domain(), claims, partitions, {each.metadata.name: each for each in reports})


def problems(found: list[DomainNode]) -> dict[str, tuple[str, str]]:
    """Reason and message of every node that is not ready."""
    return {e.name: (e.reason, e.message) for e in found if e.status is Readiness.NOT_READY}


def rack(names: str, **states: MemberState) -> NVLinkPartition:
    members = [
        member(name, index, states.get(name, MemberState.READY), since=SINCE) for index, name in enumerate(names)
    ]
    return partition(*members, channels=(assigned(7),))


def test_members_that_are_ready_and_connected_and_have_prepared_every_claim_are_ready() -> None:
    found = entries("ab", rack("abc"), reports=(report("a"), report("b"), report("c")))
    assert found == [
        DomainNode("a", "10.0.0.a", HERE, 0, Readiness.READY),
        DomainNode("b", "10.0.0.b", HERE, 1, Readiness.READY),
    ]


def test_a_dead_node_is_named_with_the_time_and_its_witnesses_stay_ready() -> None:
    for state in (MemberState.UNKNOWN, MemberState.SUSPENDED):
        witnesses = (report("a", "c"), report("b", "c"))
        found = entries("abc", rack("abc", c=state), reports=(*witnesses, report("c")))
        assert problems(found) == {"c": ("NodeUnreachable", f"c has been unreachable since {SINCE}")}
        alone = entries("ac", rack("ac", c=state), reports=(report("a", "c"), report("c", "a")))
        assert problems(alone).keys() == {"c"}


def test_a_cut_between_two_live_nodes_names_both() -> None:
    found = entries("abcd", rack("abcd"), reports=(report("a"), report("b", "c"), report("c", "b"), report("d")))
    both = ("NodesNotConnected", "b and c cannot reach each other")
    assert problems(found) == {"b": both, "c": both}


def test_a_node_that_is_missed_and_misses_nobody_may_be_dead_and_its_witness_stays_ready() -> None:
    found = entries("bc", rack("abcd"), reports=(report("a"), report("b", "c"), report("c"), report("d")))
    assert problems(found) == {"c": ("NodesNotConnected", "b and c cannot reach each other")}


def test_a_node_that_no_other_can_reach_is_named_before_its_node_object_is_not_ready() -> None:
    """Its last report still says that it is READY and reaches everybody."""
    others = tuple(report(name, "d") for name in "abc")
    found = entries("abcd", rack("abcd"), reports=(*others, report("d")))
    message = "d and 3 other nodes cannot reach each other: a, b, c"
    assert problems(found) == {"d": ("NodesNotConnected", message)}


def test_members_without_a_claim_show_which_of_two_nodes_is_cut_off() -> None:
    others = tuple(report(name, "d") for name in "abc")
    found = entries("ad", rack("abcd"), reports=(*others, report("d")))
    assert problems(found) == {"d": ("NodesNotConnected", "a and d cannot reach each other")}


def test_a_node_that_cannot_reach_members_without_a_claim_is_ready() -> None:
    assert problems(entries("ab", rack("abcd"), reports=(report("a", "c", "d"), report("b")))) == {}


def test_nodes_in_different_partitions_need_no_connection() -> None:
    there = partition(member("b", 0), channels=(assigned(9),), name=ELSEWHERE)
    found = entries("ab", rack("a"), there, reports=(report("a", "b"), report("b", "a", partition=ELSEWHERE)))
    assert problems(found) == {}


@given(
    st.sets(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef"))), st.sets(st.sampled_from("abcdef"))
)
def test_of_every_cut_pair_at_least_one_node_is_not_ready_and_of_no_other(
    cuts: set[tuple[str, str]], nodes: set[str]
) -> None:
    reports = {name: report(name, *sorted(other for node, other in cuts if node == name)) for name in "abcdef"}
    found = disconnected_nodes(rack("abcdef"), nodes, reports)
    pairs = [{a, b} for a, b in cuts if a != b and {a, b} <= nodes]
    assert all(pair & found.keys() for pair in pairs)
    assert all(any(node in pair for pair in pairs) for node in found)


@pytest.mark.parametrize(
    ("state", "last", "problem"),
    [
        (
            MemberState.NOT_READY,
            report("b", fabric=FabricState.BROKEN, fabric_reason="3 of 18 links are down"),
            ("FabricBroken", "b: the NVLink fabric is broken (3 of 18 links are down)"),
        ),
        (
            MemberState.NOT_READY,
            report("b", fabric=FabricState.PENDING, fabric_reason="GPU 0 is not registered"),
            ("FabricPending", "b: the NVLink fabric is not up: GPU 0 is not registered"),
        ),
        (
            MemberState.NOT_READY,
            report("b", state=ImexState.UNAVAILABLE),
            ("DaemonNotReady", "the IMEX daemon of node b is UNAVAILABLE, not READY"),
        ),
        (
            MemberState.NOT_READY,
            with_own_words(
                report("b", state=ImexState.UNAVAILABLE),
                "the IMEX daemon of node b is UNAVAILABLE, not READY: a port is taken",
            ),
            ("DaemonNotReady", "the IMEX daemon of node b is UNAVAILABLE, not READY: a port is taken"),
        ),
        (
            MemberState.NOT_READY,
            with_own_words(report("b", state=ImexState.UNAVAILABLE), "the disk is full"),
            ("DaemonNotReady", "the IMEX daemon of node b is UNAVAILABLE, not READY"),
        ),
        (
            MemberState.JOINING,
            report("b", index=-1),
            (
                "IndexDiffers",
                "the IMEX daemon of node b runs with index -1, but the node's index in NVLink partition"
                f" {HERE} is 1",
            ),
        ),
        (MemberState.JOINING, report("b", index=1), ("NodeNotReady", "b is Joining in its NVLink partition")),
        (
            MemberState.NOT_READY,
            with_own_words(report("b", index=1), "the disk is full"),
            ("NodeNotReady", "b is NotReady in its NVLink partition: the disk is full"),
        ),
        (MemberState.UNKNOWN, None, ("NoReport", f"b has not reported since {SINCE}")),
        (
            MemberState.READY,
            report("b", prepared=()),
            ("ClaimsNotPrepared", "b has not prepared the claim of pod-b"),
        ),
    ],
    ids=[
        "broken",
        "pending",
        "daemon down",
        "daemon down, with a cause",
        "daemon down, and another cause",
        "other index",
        "joining",
        "in its own words",
        "no report",
        "not prepared",
    ],
)
def test_a_node_that_is_not_ready_has_its_own_cause(
    state: MemberState, last: NVLinkNode | None, problem: tuple[str, str]
) -> None:
    reports = (report("a"), *((last,) if last else ()))
    assert problems(entries("ab", rack("ab", b=state), reports=reports)) == {"b": problem}


@pytest.mark.parametrize(
    ("last", "problem"),
    [
        (None, ("NoReport", "a does not report")),
        (report("a"), ("NotAMember", f"node a is not a member of NVLink partition {HERE}")),
        (
            report("a", partition="", fabric=FabricState.BROKEN, fabric_reason="no GPU"),
            ("FabricBroken", "a: the NVLink fabric is broken (no GPU)"),
        ),
        (report("a", partition="", fabric=FabricState.PENDING), ("NoReport", "a does not report")),
    ],
    ids=["no NVLinkNode", "not a member", "broken", "nothing is known"],
)
def test_a_node_that_is_no_member_has_its_own_cause(last: NVLinkNode | None, problem: tuple[str, str]) -> None:
    assert problems(entries("a", reports=(last,) if last else ())) == {"a": problem}


def test_a_node_without_nvlink_is_ready_when_its_claims_are_prepared_and_says_that_pods_get_no_channel() -> None:
    plain = report("a", fabric=FabricState.NONE, partition="")
    (entry,) = entries("a", reports=(plain,))
    assert (entry.status, entry.reason, entry.index) == (Readiness.READY, "NoFabric", -1)
    assert entry.message == "a has no NVLink fabric: its pods get no channel"
    unprepared = nvlink_node("a", fabric=FabricState.NONE, partition="")
    assert problems(entries("a", reports=(unprepared,)))["a"][0] == "ClaimsNotPrepared"


def test_nodes_that_are_not_ready_come_first() -> None:
    found = entries("abc", rack("abc", b=MemberState.UNKNOWN), reports=(report("a"), report("b"), report("c")))
    assert [entry.name for entry in found] == ["b", "a", "c"]


def test_a_node_that_moved_is_listed_in_its_new_partition() -> None:
    left = partition(member("a", 3, MemberState.LEAVING, left=2))
    joined = partition(member("a", 1), channels=(assigned(9),), name=ELSEWHERE)
    for partitions in ((left, joined), (joined, left)):
        (entry,) = entries("a", *partitions, reports=(report("a", partition=ELSEWHERE),))
        assert (entry.clique_id, entry.index, entry.ip_address) == (ELSEWHERE, 1, "10.0.0.a")


def test_without_a_channel_the_cause_is_the_same_for_every_node() -> None:
    found = problems(entries("ab", partition(member("a", 0), member("b", 1)), reports=(report("a"), report("b"))))
    cause = ("NoChannelAssigned", f"ComputeDomain team/job has no channel in NVLink partition {HERE} yet")
    assert found == {"a": cause, "b": cause}


def test_exhausted_channels_and_a_recovering_partition_are_named_as_the_cause() -> None:
    reports = {"a": report("a", channel_count=3)}
    taken = (assigned(1, "uid-x"), assigned(2, "uid-y", ChannelState.RELEASED))
    full = partition(member("a", 0), channels=taken)
    exhausted = channel_obstacle(full, domain(), reports)
    assert exhausted is not None
    assert exhausted.message() == (
        f"NVLink partition {HERE} has no free channel: all 2 are assigned or not yet reusable; delete"
        " ComputeDomains that are no longer needed"
    )
    condition = Condition(CHANNELS_REUSABLE, "False", "ReportsPending", SINCE, "these must report first: z")
    recovering = structs.replace(full, status=structs.replace(full.status, conditions=(condition,)))
    for waiting in ({"pending_reports": ("z",)}, {"required_generation": 4}):
        status = structs.replace(recovering.status, **waiting)
        blocked = channel_obstacle(structs.replace(recovering, status=status), domain(), reports)
        assert blocked is not None
        assert blocked.message() == (
            f"NVLink partition {HERE} assigns no channel at the moment: these must report first: z"
        )
    holder = partition(member("a", 0), channels=(*taken, assigned(7)))
    assert channel_obstacle(holder, domain(), reports) is None


def test_a_member_with_fewer_channels_than_the_others_does_not_exhaust_the_partition() -> None:
    reports = {
        "a": report("a", channel_count=2),
        "b": report("b", channel_count=9),
        "c": report("c", channel_count=9),
    }
    members = [member(name, index) for index, name in enumerate("abc")]
    found = channel_obstacle(partition(*members, channels=(assigned(1, "uid-x"),)), domain(), reports)
    assert found is not None
    assert found.reason == "NoChannelAssigned"


def test_a_namespace_at_its_limit_is_told_so_before_it_is_told_that_channels_are_exhausted() -> None:
    taken = (
        assigned(1, "uid-x"),
        assigned(2, "uid-y", ChannelState.RELEASED),
        other_namespace(assigned(3, "uid-z")),
    )
    full, reports = partition(member("a", 0), channels=taken), {"a": report("a", channel_count=4)}
    limited = channel_obstacle(full, domain(), reports, 1)
    assert limited is not None
    assert limited.message() == (
        f"namespace team has 1 channels in NVLink partition {HERE}, and may not have more; delete ComputeDomains"
        " that are no longer needed, or ask an administrator for a higher --max-channels-per-namespace"
    )
    for below in (0, 2):
        exhausted = channel_obstacle(full, domain(), reports, below)
        assert exhausted is not None
        assert exhausted.reason == "ChannelsExhausted"
    holder = partition(member("a", 0), channels=(assigned(7),))
    assert channel_obstacle(holder, domain(), reports, 1) is None


def other_namespace(entry: ChannelAssignment) -> ChannelAssignment:
    return structs.replace(entry, compute_domain=structs.replace(entry.compute_domain, namespace="other"))
