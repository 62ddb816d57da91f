"""Plans of a whole partition: how recovery, members, channels and epoch depend on each other."""

from datetime import datetime
from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain, ComputeDomainSpec
from imex_dra.api.meta import AnnotatedMeta
from imex_dra.api.nvlinknode import HeldChannel, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    ChannelState,
    DomainReference,
    Member,
    MemberState,
    NVLinkPartitionStatus,
    PartitionState,
    PartitionSummary,
)
from imex_dra.controller.channels import ChannelDemand
from imex_dra.controller.partitionplan import PartitionInputs, PartitionPlan, plan_partition
from imex_dra.controller.plausibility import Counters
from tests.controller.partition import ELSEWHERE, HERE, NOW, member, nvlink_node

A, B = member("a", 0), member("b", 1)


def entry(
    channel: int, uid: str, state: ChannelState = ChannelState.ASSIGNED, epoch: int = 0
) -> ChannelAssignment:
    return ChannelAssignment(channel, state, DomainReference("team", uid, uid), "", released_epoch=epoch)


def partition(
    *members: Member, epoch: int = 1, generation: int = 5, channels: tuple[ChannelAssignment, ...] = ()
) -> NVLinkPartitionStatus:
    return NVLinkPartitionStatus(generation=generation, members=members, epoch=epoch, channels=channels)


def report(node: str, *, acknowledged: int = 1, applied: int = 5, **more: Any) -> NVLinkNode:
    """Of a partition with one channel to assign."""
    return nvlink_node(node, acknowledged=acknowledged, applied=applied, channel_count=2, **more)


def plan(
    status: NVLinkPartitionStatus,
    *nvlink_nodes: NVLinkNode,
    nodes: str | None = None,
    demand: dict[str, str] | None = None,
    released: str = "",
    max_nodes: int = 4,
    not_ready: str = "",
    labeled: str = "",
    domains: tuple[ComputeDomain, ...] = (),
    known: Counters | None = None,
    now: datetime = NOW,
) -> PartitionPlan:
    """`nodes`: the Nodes that exist; by default those with an NVLinkNode. `demand`: ComputeDomains by node."""
    by_node = {one.metadata.name: one for one in nvlink_nodes}
    requests = {
        node: {ChannelDemand(DomainReference("team", uid, uid)) for uid in uids}
        for node, uids in (demand or {}).items()
    }
    inputs = PartitionInputs(
        name=HERE,
        status=status,
        max_nodes=max_nodes,
        nvlink_nodes=by_node,
        existing_nodes=set(by_node if nodes is None else nodes),
        demand=requests,
        released_domains=set(released),
        not_ready_nodes=set(not_ready),
        labeled_nodes=set(labeled),
        domains=domains,
        known=known,
        observed_generation=7,
    )
    return plan_partition(inputs, now)


def running(index: int, **more: Any) -> dict[str, Any]:
    """The report of a daemon that is READY in this partition."""
    return {"index": index, "state": ImexState.READY, "imex_partition": HERE, **more}


def member_states(planned: PartitionPlan) -> dict[str, MemberState]:
    return {m.node: m.state for m in planned.status.members}


def domain(uid: str) -> ComputeDomain:
    return ComputeDomain(AnnotatedMeta(name=uid, namespace="team", uid=uid), ComputeDomainSpec())


def states(planned: PartitionPlan) -> list[tuple[int, str, str]]:
    return [(e.channel, e.compute_domain.uid, e.state.value) for e in planned.status.channels]


def conditions(planned: PartitionPlan) -> dict[str, tuple[str, str]]:
    """Without Ready, which is always there."""
    return {c.type: (c.status, c.reason) for c in planned.status.conditions if c.type != "Ready"}


def message(planned: PartitionPlan, type_: str) -> str:
    return next(c.message for c in planned.status.conditions if c.type == type_)


def test_a_channel_is_released_acknowledged_and_then_reused() -> None:
    status = partition(A, channels=(entry(1, "o"),))
    planned = plan(status, report("a"), demand={"a": "n"}, released="o")
    assert states(planned) == [(1, "o", "Released")]
    assert planned.status.channels[0].released_epoch == 1
    assert planned.status.epoch == 2
    assert [one.uid for one in planned.channels.unmet_demand] == ["n"]
    waiting = plan(planned.status, report("a", acknowledged=1), demand={"a": "n"})
    assert waiting.status.epoch == 2
    assert states(waiting) == [(1, "o", "Released")]
    acknowledged = plan(waiting.status, report("a", acknowledged=2), demand={"a": "n"})
    assert states(acknowledged) == [(1, "n", "Assigned")]


def test_a_leaving_member_must_acknowledge_until_every_daemon_runs_without_it() -> None:
    status = partition(A, B, epoch=2, channels=(entry(1, "x", ChannelState.RELEASED, epoch=1),))
    leaving = plan(status, report("a", acknowledged=2), nodes="a", demand={"a": "n"})
    assert [(m.node, m.state) for m in leaving.status.members] == [
        ("a", MemberState.NOT_READY),
        ("b", MemberState.LEAVING),
    ]
    assert states(leaving) == [(1, "x", "Released")]
    left = plan(leaving.status, report("a", acknowledged=2, applied=6), nodes="a", demand={"a": "n"})
    assert [m.node for m in left.status.members] == ["a"]
    assert states(left) == [(1, "x", "Released")], "b counts until the list without it is stored"
    after = plan(left.status, report("a", acknowledged=2, applied=6), nodes="a", demand={"a": "n"})
    assert states(after) == [(1, "n", "Assigned")]


def test_a_stale_partition_keeps_its_members_and_assigns_no_channel_before_all_nodes_reported() -> None:
    stale = partition(A, B)
    reports = report("a", acknowledged=4, **running(0)), report("b", acknowledged=4, applied=0)
    planned = plan(stale, *reports, report("c", acknowledged=4), demand={"a": "n"})
    epoch = planned.status.epoch
    assert epoch > 4 + 1
    assert member_states(planned) == {"a": MemberState.READY, "b": MemberState.SUSPENDED}
    assert planned.status.pending_reports == ("a", "b", "c")
    assert not planned.can_assign
    assert states(planned) == []
    assert conditions(planned) == {"ChannelsReusable": ("False", "ReportsPending")}
    late = report("b", acknowledged=4, applied=0), report("c", acknowledged=epoch)
    one = plan(planned.status, report("a", acknowledged=epoch, **running(0)), *late, demand={"a": "n"})
    assert one.status.pending_reports == ("b",)
    assert member_states(one) == {"a": MemberState.READY, "b": MemberState.SUSPENDED}, "c is new, and waits"
    current = report("a", acknowledged=epoch, **running(0)), report("b", acknowledged=epoch, applied=0)
    both = plan(one.status, *current, report("c", acknowledged=epoch), demand={"a": "n"})
    assert {m.node: m.index for m in both.status.members} == {"a": 0, "b": 1, "c": 2}
    assert conditions(both) == {"ChannelsReusable": ("False", "MemberListsOutdated")}
    assert states(both) == []
    generation = both.status.generation
    applied = [report(node, acknowledged=epoch, applied=generation) for node in "abc"]
    last = plan(both.status, *applied, demand={"a": "n"})
    assert states(last) == [(1, "n", "Assigned")]
    assert last.status.required_generation == 0
    assert conditions(last) == {"ChannelsReusable": ("True", "ChannelsReusable")}


def test_a_lost_partition_serves_the_channels_that_are_known_before_all_nodes_reported() -> None:
    held = (HeldChannel(HERE, 1, "x"),)
    lost = plan(
        NVLinkPartitionStatus(),
        report("a", acknowledged=4, held=held, **running(0)),
        nodes="ab",
        labeled="b",
        domains=(domain("x"),),
        demand={"a": "n"},
    )
    assert states(lost) == [(1, "x", "Assigned")]
    assert member_states(lost) == {"a": MemberState.READY}
    assert lost.status.pending_reports == ("a", "b")


def test_a_channel_that_is_reported_late_is_not_assigned_to_another_compute_domain() -> None:
    lost = plan(NVLinkPartitionStatus(), report("a", acknowledged=4), report("b", acknowledged=3))
    held = (HeldChannel(HERE, 1, "x"),)
    epoch = lost.status.epoch
    reports = report("a", acknowledged=epoch), report("b", acknowledged=epoch, held=held)
    recovered = plan(lost.status, *reports, demand={"a": "n"})
    assert recovered.status.pending_reports == ()
    assert states(recovered) == [(1, "x", "Released")]


def test_a_daemon_that_returns_with_an_older_list_must_apply_the_new_one_before_channels_are_assigned() -> None:
    status = partition(B)
    returning = report("a", applied=4, imex_partition=HERE)
    planned = plan(status, report("b"), returning, demand={"b": "n"})
    assert planned.status.required_generation == planned.status.generation == 6
    assert states(planned) == []
    assert conditions(planned) == {"ChannelsReusable": ("False", "MemberListsOutdated")}
    current = report("b", applied=6), report("a", applied=6, imex_partition=HERE)
    assert states(plan(planned.status, *current, demand={"b": "n"})) == [(1, "n", "Assigned")]


def test_no_channel_is_reused_and_the_epoch_stays_while_a_member_list_is_outdated() -> None:
    channels = (entry(1, "x", ChannelState.RELEASED, epoch=1), entry(2, "y", ChannelState.RELEASED, epoch=2))
    returning = nvlink_node("a", acknowledged=2, applied=4, imex_partition=HERE, channel_count=9)
    member_report = nvlink_node("b", acknowledged=2, applied=5, channel_count=9)
    planned = plan(partition(B, epoch=2, channels=channels), member_report, returning, demand={"b": "n"})
    assert planned.status.channels == channels
    assert planned.status.epoch == 2


def test_only_claims_on_members_that_stay_create_demand() -> None:
    status = partition(A, B)
    planned = plan(status, report("a"), nodes="a", demand={"b": "n", "c": "m"})
    assert states(planned) == []
    assert planned.channels.unmet_demand == ()


def test_one_node_cannot_lower_the_channel_count_of_a_partition() -> None:
    members = [member(node, index) for index, node in enumerate("abc")]
    counts = {"a": 3, "b": 3, "c": 1}
    reports = [
        nvlink_node(node, acknowledged=1, applied=5, channel_count=count, **running(index))
        for index, (node, count) in enumerate(counts.items())
    ]
    planned = plan(partition(*members), *reports, demand={"a": "no"})
    assert states(planned) == [(1, "n", "Assigned"), (2, "o", "Assigned")]
    assert member_states(planned)["c"] is MemberState.NOT_READY
    assert message(planned, "Ready") == "c is not ready: it offers 1 channels, but the partition uses 3"
    newcomer = nvlink_node("d", acknowledged=1, channel_count=2)
    refused = plan(partition(*members), *reports, newcomer)
    assert "d" not in member_states(refused)
    assert conditions(refused) == {
        "ChannelSkew": ("True", "SeveralChannelCounts"),
        "NodesAdmitted": ("False", "TooFewChannels"),
    }
    assert message(refused, "NodesAdmitted").startswith("node d offers 2 channels, but")


def test_the_condition_explains_why_each_node_cannot_join() -> None:
    planned = plan(
        partition(A),
        report("a"),
        report("b", held=(HeldChannel(ELSEWHERE, 3, "x"),)),
        report("c", imex_partition=ELSEWHERE),
    )
    assert conditions(planned) == {"NodesAdmitted": ("False", "DrainFirst")}
    assert "node b cannot join" in message(planned, "NodesAdmitted")
    assert "node c cannot join" in message(planned, "NodesAdmitted")
    resolved = plan(planned.status, *(report(node) for node in "abc"))
    assert conditions(resolved) == {"NodesAdmitted": ("True", "NodesAdmitted")}


def test_the_condition_names_a_node_for_which_no_index_is_free() -> None:
    planned = plan(partition(A), report("a"), report("b"), max_nodes=1)
    assert conditions(planned) == {"NodesAdmitted": ("False", "NoIndex")}
    assert message(planned, "NodesAdmitted") == (
        f"NVLink partition {HERE} has no free index for node b: all 1 are taken; for a node that"
        " will not return, delete its Node object or run imex forget-node; if the machine has more nodes, drain"
        " it, set imex controller --max-nodes and delete the NVLinkPartition"
    )


def test_a_partition_without_problems_is_ready_and_has_no_other_condition() -> None:
    planned = plan(partition(A), report("a", **running(0)), demand={"a": "n"})
    (ready,) = planned.status.conditions
    assert (ready.type, ready.status, ready.reason) == ("Ready", "True", "MembersReady")
    assert (ready.message, ready.observed_generation) == ("1 of 1 members are ready and connected", 7)


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        ("", PartitionSummary("0/2", "0", PartitionState.DOWN)),
        ("a", PartitionSummary("1/2", "0", PartitionState.DEGRADED)),
        ("ab", PartitionSummary("2/2", "0", PartitionState.UP)),
    ],
)
def test_the_summary_counts_ready_members_and_assigned_channels(ready: str, expected: PartitionSummary) -> None:
    imex = {node: ImexState.READY if node in ready else ImexState.UNAVAILABLE for node in "ab"}
    reports = [report(m.node, index=m.index, state=imex[m.node]) for m in (A, B)]
    assert plan(partition(A, B), *reports).status.summary == expected
    leaving = structs.replace(member("c", 2), state=MemberState.LEAVING, left_generation=9)
    assigned = partition(A, B, leaving, channels=(entry(1, "x"), entry(2, "y", ChannelState.RELEASED)))
    assert plan(assigned, *reports).status.summary == structs.replace(expected, channels="1")


def test_a_report_that_cannot_be_true_costs_only_its_node_the_membership() -> None:
    status = partition(A, B)
    absurd = report("b", acknowledged=1 << 40, applied=1 << 40, **running(1))
    planned = plan(status, report("a", **running(0)), absurd, demand={"a": "n"}, known=Counters(1, 5))
    assert member_states(planned) == {"a": MemberState.READY, "b": MemberState.LEAVING}
    assert (planned.status.epoch, planned.status.generation) == (1, 6)
    assert planned.status.pending_reports == ()
    assert states(planned) == [(1, "n", "Assigned")]
    assert conditions(planned) == {"NodesAdmitted": ("False", "ImplausibleReport")}
    left = plan(planned.status, report("a", applied=6, **running(0)), absurd, known=Counters(1, 6))
    assert member_states(left) == {"a": MemberState.READY}, "it does not join again with this report"


def test_a_node_returns_through_admission_when_its_report_is_plausible_again() -> None:
    reports, honest = (report("a", applied=6, **running(0)),), report("b", **running(1))
    invented = report("b", held=(HeldChannel(HERE, 1, "x"),), **running(1))
    for wrong in (
        report("b", acknowledged=1 << 40, **running(1)),
        report("b", applied=1 << 40, **running(1)),
        invented,
    ):
        leaving = plan(partition(A, B), report("a", **running(0)), wrong, known=Counters(1, 5))
        left = plan(leaving.status, *reports, wrong, known=Counters.of(leaving.status))
        assert (member_states(leaving)["b"], "b" in member_states(left)) == (MemberState.LEAVING, False)
        for before, state in ((leaving, MemberState.READY), (left, MemberState.JOINING)):
            returned = plan(before.status, *reports, honest, known=Counters.of(before.status))
            assert member_states(returned) == {"a": MemberState.READY, "b": state}
            assert conditions(returned)["NodesAdmitted"] == ("True", "NodesAdmitted")
        late = plan(left.status, *reports, report("b", acknowledged=0), known=Counters.of(left.status))
        assert "b" not in member_states(late), "it must acknowledge the current epoch first"


def test_a_member_that_names_another_partition_neither_leaves_nor_joins_while_a_live_member_reaches_it() -> None:
    moved = report("b", partition=ELSEWHERE)
    contradicted = plan(partition(A, B), report("a", **running(0)), moved)
    assert member_states(contradicted) == {"a": MemberState.READY, "b": MemberState.UNKNOWN}
    assert conditions(contradicted) == {"NodesAdmitted": ("False", "ContradictedMove")}
    assert "member a still reaches it" in message(contradicted, "NodesAdmitted")
    confirmed = plan(contradicted.status, report("a", unreachable=("b",), **running(0)), moved)
    assert member_states(confirmed)["b"] is MemberState.LEAVING
    assert conditions(confirmed) == {"NodesAdmitted": ("True", "NodesAdmitted")}


def test_the_plan_is_made_again_when_a_release_has_waited_or_a_member_may_be_suspended() -> None:
    away = structs.replace(B, state=MemberState.UNKNOWN, since="2025-12-31T23:55:00Z")
    reports = report("a", **running(0)), report("b")
    assert plan(partition(A, away), *reports, not_ready="b").recheck_after == 300
    released = structs.replace(entry(1, "x", ChannelState.RELEASED, epoch=1), released_at="2025-12-31T23:59:50Z")
    held = report("a", held=(HeldChannel(HERE, 1, "x"),), **running(0))
    assert plan(partition(A, channels=(released,)), held).recheck_after == 50
    assert plan(partition(A), held).recheck_after is None


@pytest.mark.parametrize("restored_epoch", [9, 5], ids=["before the assignment", "before an epoch"])
@pytest.mark.parametrize("has_memory", [True, False], ids=["same leader", "new leader"])
def test_a_node_that_was_away_while_the_partition_forgot_its_channel_does_not_come_back_with_it(
    restored_epoch: int, has_memory: bool
) -> None:
    """Seeds 81 and 176: nothing proves the restore while the only holder of a channel is elsewhere."""
    held = (HeldChannel(HERE, 1, "x"),)
    away = nvlink_node("a", partition=ELSEWHERE, acknowledged=9, held=held, channel_count=2)
    status = partition(A, epoch=restored_epoch)
    for _ in range(3):
        b = report("b", acknowledged=restored_epoch, applied=status.generation, **running(1))
        status = plan(status, away, b, demand={"b": "y"}).status
    assert status.epoch == restored_epoch
    assert [(e.channel, e.compute_domain.uid) for e in status.channels] == [(1, "y")]
    known = Counters.of(status) if has_memory else None
    for _ in range(5):
        # Both acknowledge each epoch; a fence never sinks.
        acknowledged = max(9, status.epoch)
        a = nvlink_node("a", acknowledged=acknowledged, held=held, channel_count=2)
        b = report("b", acknowledged=status.epoch, applied=status.generation, **running(1))
        planned = plan(status, a, b, demand={"b": "y"}, known=known)
        status, known = planned.status, Counters.of(planned.status) if has_memory else None
        assert [one.node for one in status.members if one.state is not MemberState.LEAVING] == ["b"]
    assert conditions(planned)["NodesAdmitted"][0] == "False"
    if restored_epoch == 9:
        assert conditions(planned)["NodesAdmitted"][1] == "DrainFirst"
