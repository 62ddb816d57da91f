"""What other objects know of a partition's channels: whether its status is stale, and what it lacks. Pure.

The status of ComputeDomains and the channels that nodes hold are evidence. A channel with one owner is assigned to
it again; a contradictory one is released, and reused only when no node holds it. See docs/design/channel-reuse.md.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.meta import is_deleting
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    ChannelState,
    DomainReference,
    MemberState,
    NVLinkPartitionStatus,
)
from imex_dra.base.clock import rfc3339
from imex_dra.controller.channels import release

Evidence = list[tuple[int, DomainReference]]

DISPUTED = DomainReference("", "", "")
"""Holder of a channel that two ComputeDomains claim. It matches neither of them, so no node that holds the channel
can join."""


def recorded_channels(status: NVLinkPartitionStatus) -> frozenset[tuple[int, str]]:
    """Channel numbers with the UID of the ComputeDomain that has or had each of them."""
    return frozenset([(entry.channel, entry.compute_domain.uid) for entry in status.channels])


def unrecorded_holders(
    partition: PartitionId, status: NVLinkPartitionStatus, nvlink_nodes: Mapping[str, NVLinkNode]
) -> set[str]:
    """Members that hold a channel of which the status knows nothing.

    An entry stays in the status until no member holds its channel. So either the status was restored from a backup
    that is older than the assignment, or the report is not true. Counters do not show such a backup: assignments
    change neither the epoch nor the member list.
    """
    # A Suspended or leaving member may hold what was reused since; admission decides about it.
    inside = (MemberState.JOINING, MemberState.READY, MemberState.NOT_READY, MemberState.UNKNOWN)
    members = [member.node for member in status.members if member.state in inside]
    held = {
        (node, one.channel, one.compute_domain)
        for node in members
        if (report := nvlink_nodes.get(node)) is not None and report.status.partition == partition
        for one in report.status.held_channels
        if one.partition == partition
    }
    # Members hold few channels of a partition that may have released hundreds.
    channels = {channel for _, channel, _ in held}
    entries = [entry for entry in status.channels if entry.channel in channels]
    recorded = {(entry.channel, entry.compute_domain.uid) for entry in entries}
    disputed = {entry.channel for entry in entries if entry.compute_domain == DISPUTED}
    return {node for node, channel, uid in held if (channel, uid) not in recorded and channel not in disputed}


def merge_evidence(
    partition: PartitionId,
    entries: tuple[ChannelAssignment, ...],
    domains: Iterable[ComputeDomain],
    nvlink_nodes: Iterable[NVLinkNode],
    *,
    epoch: int,
    now: datetime,
) -> tuple[ChannelAssignment, ...]:
    """The channels of a reset partition, with what other objects know of them."""
    existing = {domain.metadata.uid: domain for domain in domains}
    listed = _channels_in_domain_status(partition, existing.values())
    held = _channels_held_on_nodes(partition, nvlink_nodes, existing)
    known = {entry.channel: entry for entry in entries}
    # The channel of a ComputeDomain that is being deleted may have been released and reused already.
    served = {uid for uid, domain in existing.items() if not is_deleting(domain)}
    for channel, holder in listed:
        # A ComputeDomain keeps its channel until it is deleted. So if one that is served lists the channel, and
        # the owner in the status is gone, the status is from before the channel was reused: no dispute. What a
        # node still holds for the former owner is merged below.
        if holder.uid in served and channel in known and known[channel].compute_domain.uid not in {"", *served}:
            del known[channel]
    for channel, holder in [*listed, *held]:
        known[channel] = _merge_channel(known, channel, holder, holder.uid in served, epoch, now)
    return tuple(known[channel] for channel in sorted(known))


def _channels_in_domain_status(partition: PartitionId, domains: Iterable[ComputeDomain]) -> Evidence:
    found = [
        (entry.channel, _reference(domain.metadata.uid, domain))
        for domain in domains
        for entry in domain.status.partitions
        if entry.name == partition
    ]
    return sorted(found, key=lambda one: (one[0], one[1].uid))


def _channels_held_on_nodes(
    partition: PartitionId, nvlink_nodes: Iterable[NVLinkNode], existing: Mapping[str, ComputeDomain]
) -> Evidence:
    pairs = {
        (held.channel, held.compute_domain)
        for nvlink_node in nvlink_nodes
        for held in nvlink_node.status.held_channels
        if held.partition == partition
    }
    return [(channel, _reference(uid, existing.get(uid))) for channel, uid in sorted(pairs)]


def _reference(uid: str, domain: ComputeDomain | None) -> DomainReference:
    if domain is None:
        return DomainReference("", "", uid)
    return DomainReference(domain.metadata.namespace, domain.metadata.name, uid)


def _merge_channel(
    known: Mapping[int, ChannelAssignment],
    channel: int,
    holder: DomainReference,
    is_served: bool,
    epoch: int,
    now: datetime,
) -> ChannelAssignment:
    """Assigned only if the holder stays and this is its only channel, and only claim to this channel."""
    entry = known.get(channel)
    if entry is not None and entry.compute_domain.uid == holder.uid:
        return entry
    if entry is not None:
        return release(structs.replace(entry, compute_domain=DISPUTED), epoch, now)
    assigned = ChannelAssignment(channel, ChannelState.ASSIGNED, holder, assigned_at=rfc3339(now))
    has_another = any(
        other.compute_domain.uid == holder.uid and other.state is ChannelState.ASSIGNED for other in known.values()
    )
    return assigned if is_served and not has_another else release(assigned, epoch, now)
