"""What an NVLinkPartition says about itself: its conditions, and the columns of kubectl get. Pure.

The message names the member that is the cause, not the members that notice it: if several members cannot reach
one, that one is named.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from imex_dra.api import partitionreasons, reasons
from imex_dra.api.limits import MAX_TEXT
from imex_dra.api.meta import Condition
from imex_dra.api.nvlinknode import FabricState, NVLinkNode, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import (
    CHANNEL_SKEW,
    CHANNELS_REUSABLE,
    DELETION_BLOCKED,
    NODES_ADMITTED,
    NOT_CONNECTED,
    READY,
    VERSION_SKEW,
    ChannelState,
    Member,
    MemberState,
    NVLinkPartitionStatus,
    PartitionState,
    PartitionSummary,
)
from imex_dra.api.reasons import Explanation, listed
from imex_dra.controller.membership import counted, staying
from imex_dra.controller.plausibility import has_too_few_channels
from imex_dra.kube.conditions import find_condition, with_condition

Pair = tuple[str, str]


class Problems(NamedTuple):
    """What is wrong apart from the members' states."""

    reuse: Explanation | None = None
    admission: Explanation | None = None
    is_deleting: bool = False


def conditions(
    before: tuple[Condition, ...],
    status: NVLinkPartitionStatus,
    nvlink_nodes: Mapping[str, NVLinkNode],
    problems: Problems,
    *,
    channel_count: int,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """Ready is always there. The others are added when they have something to say, and then stay."""
    pairs = disconnected_pairs(status.members, nvlink_nodes)
    ready, explanation = _readiness(status.members, nvlink_nodes, pairs, channel_count)
    after = with_condition(
        before,
        READY,
        status=ready,
        reason=explanation.reason,
        message=explanation.message(),
        now=now,
        generation=generation,
    )
    for type_, problem, otherwise, status_if_problem in (
        (NOT_CONNECTED, _not_connected(pairs), partitionreasons.members_connected(), True),
        (VERSION_SKEW, _version_skew(status.members, nvlink_nodes), partitionreasons.one_version(), True),
        (CHANNEL_SKEW, _channel_skew(status.members, nvlink_nodes), partitionreasons.one_channel_count(), True),
        (CHANNELS_REUSABLE, problems.reuse, partitionreasons.channels_reusable(), False),
        (NODES_ADMITTED, problems.admission, partitionreasons.nodes_admitted(), False),
        (DELETION_BLOCKED, _uses(status) if problems.is_deleting else None, partitionreasons.unused(), True),
    ):
        if problem or find_condition(after, type_):
            explanation = problem or otherwise
            after = with_condition(
                after,
                type_,
                status=status_if_problem == (problem is not None),
                reason=explanation.reason,
                message=explanation.message(),
                now=now,
                generation=generation,
            )
    return after


def summary(status: NVLinkPartitionStatus, nvlink_nodes: Mapping[str, NVLinkNode]) -> PartitionSummary:
    members = staying(status.members)
    ready = sum(member.state is MemberState.READY for member in members)
    assigned = sum(entry.state is ChannelState.ASSIGNED for entry in status.channels)
    is_up = ready == len(members) and not disconnected_pairs(members, nvlink_nodes)
    state = PartitionState.UP if is_up else PartitionState.DEGRADED
    return PartitionSummary(f"{ready}/{len(members)}", str(assigned), state if ready else PartitionState.DOWN)


def disconnected_pairs(members: Sequence[Member], nvlink_nodes: Mapping[str, NVLinkNode]) -> list[Pair]:
    """Members that are alive and cannot reach each other, as one of them or both say."""
    alive = {member.node for member in members if member.state is MemberState.READY}
    pairs = {
        (min(node, other), max(node, other))
        for node in alive & nvlink_nodes.keys()
        for other in nvlink_nodes[node].status.unreachable
        if other in alive and other != node
    }
    return sorted(pairs)


def culprits_of(pairs: Sequence[Pair]) -> tuple[list[str], list[Pair]]:
    """Members that several others cannot reach, and the pairs that none of these explains."""
    culprits, rest = [], list(pairs)
    while rest:
        counts = {node: sum(node in pair for pair in rest) for pair in rest for node in pair}
        worst = min(counts, key=lambda node: (-counts[node], node))
        if counts[worst] < 2:
            break
        culprits.append(worst)
        rest = [pair for pair in rest if worst not in pair]
    return culprits, rest


def _readiness(
    members: Sequence[Member], nvlink_nodes: Mapping[str, NVLinkNode], pairs: Sequence[Pair], channel_count: int
) -> tuple[bool, Explanation]:
    needed = counted(members)
    unreachable, rest = culprits_of(pairs)
    causes = [
        *(
            _cause(member, nvlink_nodes.get(member.node), channel_count)
            for member in needed
            if member.state is not MemberState.READY
        ),
        *(partitionreasons.member_unreachable_for_several(node=node) for node in unreachable),
        *(partitionreasons.cannot_reach_each_other(one=one, other=other) for one, other in rest),
    ]
    if causes:
        return False, partitionreasons.members_not_ready(culprits=causes)
    if not needed:
        return False, partitionreasons.no_members()
    suspended = [member for member in members if member.state is MemberState.SUSPENDED]
    if suspended:
        names = [f"{member.node} since {reasons.at(member.since)}" for member in suspended]
        return True, partitionreasons.member_suspended(count=len(needed), suspended=names)
    return True, partitionreasons.members_ready(count=len(needed))


def _cause(member: Member, nvlink_node: NVLinkNode | None, channel_count: int) -> str:
    if member.state is MemberState.JOINING:
        return partitionreasons.member_joining(node=member.node)
    if member.state is MemberState.UNKNOWN:
        # With a complete report, only its Node can be the reason.
        if nvlink_node is not None and nvlink_node.status.partition and nvlink_node.status.address:
            return partitionreasons.member_not_reachable(node=member.node, since=member.since)
        return partitionreasons.member_not_reporting(node=member.node, since=member.since)
    if nvlink_node is None:
        return partitionreasons.member_not_reporting(node=member.node, since=member.since)
    if has_too_few_channels(nvlink_node, channel_count):
        count = nvlink_node.status.channel_count
        return partitionreasons.member_not_ready(
            node=member.node, cause=f"it offers {count} channels, but the partition uses {channel_count}"
        )
    return partitionreasons.member_not_ready(node=member.node, cause=_own_cause(nvlink_node.status))


def _own_cause(report: NVLinkNodeStatus) -> str:
    own = find_condition(report.conditions, READY)
    if own is not None and own.status == "False":
        return own.message[:MAX_TEXT]
    if report.fabric.state is not FabricState.OK:
        return report.fabric.reason or f"its NVLink fabric is {report.fabric.state}"
    return f"its IMEX daemon is {report.imex_state}, with index {report.index}"


def _uses(status: NVLinkPartitionStatus) -> Explanation | None:
    counts = {
        "members": len(status.members),
        "channels": len(status.channels),
        "pending reports": len(status.pending_reports),
    }
    uses = [f"{count} {noun}" for noun, count in counts.items() if count]
    return partitionreasons.in_use(uses=uses) if uses else None


def _not_connected(pairs: Sequence[Pair]) -> Explanation | None:
    sentences = [partitionreasons.cannot_reach_each_other(one=one, other=other) for one, other in pairs]
    return partitionreasons.members_not_connected(pairs=sentences) if sentences else None


def _version_skew(members: Sequence[Member], nvlink_nodes: Mapping[str, NVLinkNode]) -> Explanation | None:
    groups = _groups(members, nvlink_nodes, lambda status: status.driver_version)
    return partitionreasons.several_versions(groups=groups) if len(groups) > 1 else None


def _channel_skew(members: Sequence[Member], nvlink_nodes: Mapping[str, NVLinkNode]) -> Explanation | None:
    groups = _groups(members, nvlink_nodes, lambda status: status.channel_count)
    return partitionreasons.several_channel_counts(groups=groups) if len(groups) > 1 else None


def _groups(
    members: Sequence[Member],
    nvlink_nodes: Mapping[str, NVLinkNode],
    value: Callable[[NVLinkNodeStatus], str | int],
) -> list[str]:
    """Members by what they report, the largest group first. What a member does not know yet does not count."""
    groups: dict[str | int, list[str]] = {}
    for member in staying(members):
        if (report := nvlink_nodes.get(member.node)) and (found := value(report.status)):
            groups.setdefault(found, []).append(member.node)
    ordered = sorted(groups, key=lambda found: (-len(groups[found]), str(found)))
    return [f"{found} on {listed(sorted(groups[found]))}" for found in ordered]
