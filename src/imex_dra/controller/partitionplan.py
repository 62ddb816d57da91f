"""The next status of one NVLinkPartition: members, channels, epoch and conditions, planned together. Pure.

`nvlinkpartitions` gathers the inputs and writes the plan in a single update, so that no reader sees new channels
with an old epoch or an old member list. See docs/design/channel-reuse.md and docs/design/membership.md.
"""

from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from typing import NamedTuple

from msgspec import structs

from imex_dra.api import partitionreasons
from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelAssignment, MemberState, NVLinkPartitionStatus
from imex_dra.api.reasons import Explanation
from imex_dra.controller.admission import Admission, combined
from imex_dra.controller.channels import ChannelDemand, ChannelPlan, plan_channels
from imex_dra.controller.epochs import EpochPlan, NodeReports, next_epoch, reusable_channels, reuse_problem
from imex_dra.controller.evidence import merge_evidence
from imex_dra.controller.liveness import Liveness
from imex_dra.controller.membership import MemberInputs, MemberPlan, plan_members, staying
from imex_dra.controller.nodelists import common_digest
from imex_dra.controller.partitionconditions import Problems, conditions, summary
from imex_dra.controller.plausibility import Counters, channel_count, contradicted_moves, implausible_reports
from imex_dra.controller.recovery import (
    kept_members,
    lagging,
    required_generation,
    reset_if_stale,
    still_pending,
)
from imex_dra.controller.settings import DEFAULTS, Settings


class PartitionInputs(NamedTuple):
    """What a plan depends on."""

    name: PartitionId
    status: NVLinkPartitionStatus
    max_nodes: int
    nvlink_nodes: Mapping[str, NVLinkNode]
    """Of existing nodes that are, were or want to be members, or hold a channel of this partition."""
    existing_nodes: Set[str]
    """Those of these nodes that have a Node object."""
    not_ready_nodes: Set[str] = frozenset()
    """Those of these nodes whose Node is not Ready."""
    labeled_nodes: Set[str] = frozenset()
    """Nodes with the clique label of this partition."""
    other_partitions: Mapping[str, str] = {}
    """By node: another partition that lists it as a member."""
    domains: tuple[ComputeDomain, ...] = ()
    demand: Mapping[str, Set[ChannelDemand]] = {}
    """By node."""
    released_domains: Set[str] = frozenset()
    """UIDs of ComputeDomains that no longer need their channel, confirmed by live reads."""
    refused_domains: Set[str] = frozenset()
    """UIDs of ComputeDomains that request all channels and may not open them."""
    pods: Mapping[tuple[str, str], Sequence[str]] = {}
    """Pods with a claim on nodes that are not members, by node and UID of the ComputeDomain."""
    known: Counters | None = None
    """The counters as this leader last wrote or confirmed them."""
    settings: Settings = DEFAULTS
    observed_generation: int = 0
    """metadata.generation of the NVLinkPartition."""
    is_deleting: bool = False


class PartitionPlan(NamedTuple):
    status: NVLinkPartitionStatus
    channels: ChannelPlan
    can_assign: bool
    """False while the partition recovers: no channel is assigned, whether one is free or not."""
    channel_count: int
    recheck_after: float | None = None
    """Seconds after which the plan must be made again although nothing else changes."""


class _Base(NamedTuple):
    """What the plan starts from: the stored status, or the recovered one if that is stale."""

    status: NVLinkPartitionStatus
    pending_reports: tuple[str, ...]
    channels: tuple[ChannelAssignment, ...]
    channel_count: int
    node_list_digest: str
    nvlink_nodes: Mapping[str, NVLinkNode]
    """Without implausible reports."""
    implausible: Mapping[str, Explanation]
    contradicted: Mapping[str, str]

    @property
    def recovered(self) -> bool:
        """Whether the last pending report has arrived with this plan."""
        return bool(self.status.pending_reports) and not self.pending_reports


def plan_partition(inputs: PartitionInputs, now: datetime) -> PartitionPlan:
    # Recovery comes first: members and channels of a stale status are wrong, and every later step builds on them.
    base = _base(inputs, now)
    # Members before channels: only claims on members create demand, and every member must acknowledge a release.
    admission = Admission(
        inputs.name,
        base.status.epoch,
        base.channels,
        base.channel_count,
        inputs.pods,
        inputs.other_partitions,
        base.node_list_digest,
        base.status.members,
        inputs.max_nodes,
    )
    liveness = Liveness(now, inputs.not_ready_nodes, inputs.settings.suspend_after, base.status.epoch)
    members = _plan_members(inputs, base, admission, liveness)
    reports = _reports(inputs, base, members)
    required = required_generation(inputs.name, base.status, members, base.nvlink_nodes)
    outdated = lagging(required, members.members, base.nvlink_nodes)
    can_assign = not base.pending_reports and not outdated
    channels = _plan_channels(inputs, base, members, reports, can_assign=can_assign, now=now)
    epoch = _plan_epoch(base, channels, reports, can_assign=can_assign, now=now)
    problems = Problems(
        reuse=reuse_problem(base.pending_reports, outdated, channels.assignments, epoch.epoch, reports),
        admission=_admission_problem(inputs, base, admission, members),
        is_deleting=inputs.is_deleting,
    )
    status = NVLinkPartitionStatus(
        generation=members.generation,
        members=members.members,
        freed_indexes=members.freed_indexes,
        epoch=epoch.epoch,
        pending_reports=base.pending_reports,
        required_generation=0 if can_assign else required,
        last_channel=channels.last_channel,
        node_list_digest=base.node_list_digest,
        channels=channels.assignments,
    )
    status = structs.replace(
        status,
        conditions=conditions(
            inputs.status.conditions,
            status,
            inputs.nvlink_nodes,
            problems,
            channel_count=base.channel_count,
            generation=inputs.observed_generation,
            now=now,
        ),
        summary=summary(status, inputs.nvlink_nodes),
    )
    delays = [epoch.recheck_after, liveness.next_suspension(members.members)]
    recheck_after = min((delay for delay in delays if delay is not None), default=None)
    return PartitionPlan(status, channels, can_assign, base.channel_count, recheck_after)


def _base(inputs: PartitionInputs, now: datetime) -> _Base:
    name, domains, not_ready = inputs.name, inputs.domains, inputs.not_ready_nodes
    implausible = implausible_reports(name, inputs.status, inputs.nvlink_nodes, not_ready, inputs.known)
    believed = {node: found for node, found in inputs.nvlink_nodes.items() if node not in implausible}
    status = reset_if_stale(name, inputs.status, believed, domains, inputs.labeled_nodes, now, inputs.known)
    pending_reports = still_pending(name, status, believed, inputs.existing_nodes)
    channels = status.channels
    # Evidence is merged up to and including the plan in which the last report arrives. After that the partition
    # assigns channels, and evidence from an older report or ComputeDomain status would contradict it.
    if status.pending_reports:
        channels = merge_evidence(name, channels, domains, believed.values(), epoch=status.epoch, now=now)
        status = structs.replace(
            status, members=kept_members(name, status.members, believed, not_ready, status.epoch)
        )
    return _Base(
        status,
        pending_reports,
        channels,
        channel_count(status.members, believed),
        common_digest(name, status.node_list_digest, status.members, believed),
        believed,
        implausible,
        contradicted_moves(name, status.members, believed, not_ready),
    )


def _plan_members(inputs: PartitionInputs, base: _Base, admission: Admission, liveness: Liveness) -> MemberPlan:
    return plan_members(
        MemberPlan(base.status.members, base.status.generation, base.status.freed_indexes),
        MemberInputs(
            inputs.name,
            inputs.max_nodes,
            base.nvlink_nodes,
            inputs.existing_nodes,
            liveness,
            # While reports are pending, `base.channels` may lack channels that other nodes hold.
            is_admissible=lambda node: not base.pending_reports and admission.is_admissible(node),
            expelled=base.implausible.keys(),
            contradicted=base.contradicted.keys(),
            channel_count=base.channel_count,
            node_list_digest=base.node_list_digest,
            recovered=base.recovered,
        ),
    )


def _reports(inputs: PartitionInputs, base: _Base, members: MemberPlan) -> NodeReports:
    """With the nodes that must acknowledge a release before the channel is reused."""
    # Leaving members are among them: they stay connected until every other daemon has applied a list without them.
    # So are members that this plan drops: the list without them is not stored before this plan is written.
    acknowledging = {member.node for member in (*base.status.members, *members.members)}
    return NodeReports(
        inputs.name,
        tuple(sorted(acknowledging)),
        inputs.nvlink_nodes,
        suspended={m.node: m.suspended_epoch for m in members.members if m.state is MemberState.SUSPENDED},
        expelled=base.implausible.keys(),
    )


def _plan_channels(
    inputs: PartitionInputs,
    base: _Base,
    members: MemberPlan,
    reports: NodeReports,
    *,
    can_assign: bool,
    now: datetime,
) -> ChannelPlan:
    demand = {one for member in staying(members.members) for one in inputs.demand.get(member.node, ())}
    return plan_channels(
        base.channels,
        demand,
        released_domains=inputs.released_domains,
        refused_domains=inputs.refused_domains,
        # While the partition recovers, nothing is assigned and nothing is reusable: what nodes hold is not known.
        channel_count=base.channel_count if can_assign else 0,
        now=now,
        last_channel=base.status.last_channel,
        epoch=base.status.epoch,
        reusable=reusable_channels(base.channels, reports) if can_assign else frozenset(),
        max_per_namespace=inputs.settings.max_channels_per_namespace,
    )


def _plan_epoch(
    base: _Base, channels: ChannelPlan, reports: NodeReports, *, can_assign: bool, now: datetime
) -> EpochPlan:
    """Comes last: it depends on what this plan releases and on the demand that it leaves unmet."""
    if not can_assign:
        return EpochPlan(base.status.epoch)
    return next_epoch(
        base.status.epoch, channels.assignments, reports, unmet_demand=bool(channels.unmet_demand), now=now
    )


def _admission_problem(
    inputs: PartitionInputs, base: _Base, admission: Admission, members: MemberPlan
) -> Explanation | None:
    inside = {member.node for member in staying(members.members)}
    problems = [
        *(base.implausible[node] for node in sorted(base.implausible)),
        *(
            partitionreasons.contradicted_move(node=node, partition=inputs.name, witness=witness)
            for node, witness in sorted(base.contradicted.items())
        ),
        *admission.refusals(base.nvlink_nodes[node] for node in sorted(base.nvlink_nodes.keys() - inside)),
    ] or [
        partitionreasons.no_index(node=node, partition=inputs.name, max_nodes=inputs.max_nodes)
        for node in members.without_index
    ]
    return combined(problems) if problems else None
