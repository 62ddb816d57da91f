"""Which part of a change can alter the outcome of a reconcile. Pure.

A partition is planned from almost all that its nodes report; the status of a ComputeDomain from little of it. With
thousands of nodes most changes concern one partition and the ComputeDomains of one node. Each function here may
say yes too often, which costs time, but never no if the outcome can differ. See docs/design/triggers.md.
"""

from typing import NamedTuple

from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.meta import is_deleting
from imex_dra.api.nvlinknode import READY, Isolation, NVLinkNode, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import (
    CHANNELS_REUSABLE,
    ChannelState,
    MemberState,
    NVLinkPartition,
    NVLinkPartitionStatus,
)
from imex_dra.controller.caches import release_requested
from imex_dra.kube.conditions import find_condition


def concerns_partition(old: NVLinkNode | None, new: NVLinkNode | None) -> bool:
    """Whether a plan of the node's partition may differ."""
    return old is None or new is None or _for_partition(old.status) != _for_partition(new.status)


def _for_partition(status: NVLinkNodeStatus) -> NVLinkNodeStatus:
    """Without what no plan uses."""
    return structs.replace(
        status,
        product="",
        gpu_count=0,
        gpus=(),
        prepared_claims=(),
        max_claims=0,
        imex_started_at="",
        isolation=Isolation(),
    )


def concerns_domains(old: NVLinkNode | None, new: NVLinkNode | None) -> bool:
    """Whether the status of a ComputeDomain with a claim on the node may differ, apart from who reaches whom."""
    return old is None or new is None or _for_domains(old.status) != _for_domains(new.status)


def _for_domains(status: NVLinkNodeStatus) -> tuple[object, ...]:
    """What `domainnodes` and `waitingclaims` use."""
    ready = find_condition(status.conditions, READY)
    return (
        status.fabric,
        status.partition,
        status.imex_state,
        status.imex_started_at,
        status.index,
        status.channel_count,
        status.max_claims,
        status.prepared_claims,
        ready and (ready.status, ready.message),
    )


def concerns_waiting_domains(old: NVLinkNode | None, new: NVLinkNode | None) -> bool:
    """Whether a ComputeDomain without a channel may report another cause, wherever in the partition its claims
    are: how many channels the partition uses depends on the reports of all members (`plausibility.channel_count`).
    """
    return (old and old.status.channel_count) != (new and new.status.channel_count)


def reached_differently(old: NVLinkNode | None, new: NVLinkNode | None) -> set[str]:
    """The nodes whose connection to the reporting node has changed, as far as it says."""
    before, after = old.status.unreachable if old else (), new.status.unreachable if new else ()
    return set(before) ^ set(after)


def concerns_partitions(old: ComputeDomain | None, new: ComputeDomain | None) -> bool:
    """Whether the plan of a partition in which the ComputeDomain has claims or a channel may differ."""
    if old is None or new is None:
        return True
    return (is_deleting(old), release_requested(old)) != (is_deleting(new), release_requested(new))


def listed_differently(old: ComputeDomain | None, new: ComputeDomain | None) -> set[str]:
    """The partitions of which the status says something else: evidence, if one of them recovers."""
    before, after = ({(p.name, p.channel) for p in d.status.partitions} if d else set() for d in (old, new))
    return {name for name, _ in before ^ after}


class PartitionChange(NamedTuple):
    """The ComputeDomains whose status may differ."""

    domains: frozenset[str] = frozenset()
    """UIDs of those whose channel has changed."""
    nodes: frozenset[str] = frozenset()
    """Those with claims on these nodes."""
    without_channel: bool = False
    """Those that wait for a channel: what they report as the cause."""


def partition_change(old: NVLinkPartition, new: NVLinkPartition, *, any_unreachable: bool) -> PartitionChange:
    """`any_unreachable`: whether a member of either reports one that it cannot reach."""
    before, after = old.status, new.status
    members = set(before.members) ^ set(after.members)
    # Which node of a pair is cut off depends on all members that are Ready (`domainnodes.disconnected_nodes`).
    if any_unreachable and any(member.state is MemberState.READY for member in members):
        members |= {*before.members, *after.members}
    return PartitionChange(
        frozenset(uid for uid, _ in _assigned(before) ^ _assigned(after)),
        frozenset(member.node for member in members),
        _assignability(before) != _assignability(after),
    )


def _assigned(status: NVLinkPartitionStatus) -> set[tuple[str, int]]:
    return {(e.compute_domain.uid, e.channel) for e in status.channels if e.state is ChannelState.ASSIGNED}


def _assignability(status: NVLinkPartitionStatus) -> tuple[object, ...]:
    """What `domainnodes.channel_obstacle` uses."""
    reusable = find_condition(status.conditions, CHANNELS_REUSABLE)
    recovers = bool(status.pending_reports), bool(status.required_generation)
    # Of whose reports the number of usable channels is the median.
    counted = {member.node for member in status.members if member.state is not MemberState.LEAVING}
    # A namespace has reached its limit, or no longer, when the channel of another ComputeDomain changes.
    return *recovers, reusable, len(status.channels), _assigned(status), counted
