"""When a released channel may be reused, and when members are asked for it. Pure.

To make released channels reusable, the controller increments the partition's epoch. Each node then stores the
epoch on disk as a fence, accepts no assignment from an earlier epoch, and reports the channels that it still
holds. A released channel is reusable when every member has acknowledged an epoch after its release and no node
holds it.

A member that does not acknowledge blocks reuse. If it is Suspended, the epoch goes on without it, so that the
others can be asked again; but the channels that it may hold stay blocked: its processes may be alive behind a
broken network, and its daemon would be accepted again. So that a dead node blocks few channels, members are asked
early and in small batches. See docs/design/channel-reuse.md.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

from imex_dra.api import partitionreasons
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState
from imex_dra.api.reasons import Explanation

BATCH = 32
"""Released channels after which members are asked at once. An epoch costs one write per node."""

PATIENCE = 60.0
"""Seconds after which members are asked about fewer. It bounds the writes of a node to one a minute."""


@dataclass(frozen=True)
class NodeReports:
    """The NVLinkNodes that matter for a partition, and the members whose acknowledgment counts.

    A partition may have many released channels, and each is compared with all reports: what is asked for each
    channel is looked up, not searched.
    """

    partition: PartitionId
    members: tuple[str, ...]
    nvlink_nodes: Mapping[str, NVLinkNode]
    suspended: Mapping[str, int] = field(default_factory=dict)
    """By node: the epoch in which it was suspended."""
    expelled: Set[str] = frozenset()
    """Nodes whose report cannot be true: they acknowledge nothing, but what they say they hold is not reused."""

    def acknowledged_epoch(self, node: str) -> int:
        """-1 if the node does not report from this partition."""
        nvlink_node = self.nvlink_nodes.get(node)
        if nvlink_node is None or nvlink_node.status.partition != self.partition or node in self.expelled:
            return -1
        return nvlink_node.status.acknowledged_epoch

    def unacknowledged(self, epoch: int) -> list[str]:
        """Members that have not acknowledged this epoch."""
        if epoch not in self._unacknowledged:
            behind = [node for node in self.members if self.acknowledged_epoch(node) < epoch]
            self._unacknowledged[epoch] = behind
        return self._unacknowledged[epoch]

    def blocking(self, entry: ChannelAssignment) -> list[str]:
        """Members whose processes may hold this released channel, for lack of an acknowledgment."""
        # Acknowledging the epoch of the release itself is not enough: statuses from before the release have the
        # same epoch and show the channel as Assigned, so a prepare that read one could still pass the node's
        # fence. Every status of a later epoch shows the channel as Released.
        unacknowledged = self.unacknowledged(entry.released_epoch + 1)
        if not self.suspended:
            return unacknowledged
        return [node for node in unacknowledged if not self._never_had(node, entry)]

    @cached_property
    def _unacknowledged(self) -> dict[int, list[str]]:
        """By epoch, as far as it was asked for: many channels are released in few epochs."""
        return {}

    def _never_had(self, node: str, entry: ChannelAssignment) -> bool:
        # Every status with this assignment shows the node as Suspended, and such a status grants it nothing. In
        # the epoch of the suspension itself the assignment may have come first.
        return node in self.suspended and self.suspended[node] < entry.assigned_epoch

    def may_advance(self, epoch: int) -> bool:
        """Whether every member that is not Suspended has acknowledged this epoch, and at least one did."""
        waited_for = [node for node in self.members if node not in self.suspended]
        return bool(waited_for) and all(self.acknowledged_epoch(node) >= epoch for node in waited_for)

    def holders(self, channel: int) -> list[str]:
        """Nodes that hold the channel, whether they are members or not: one that is not may join later."""
        return self._holders.get(channel, [])

    @cached_property
    def _holders(self) -> dict[int, list[str]]:
        holders: dict[int, list[str]] = {}
        for node, nvlink_node in sorted(self.nvlink_nodes.items()):
            channels = {h.channel for h in nvlink_node.status.held_channels if h.partition == self.partition}
            for channel in channels:
                holders.setdefault(channel, []).append(node)
        return holders


def is_reusable(entry: ChannelAssignment, reports: NodeReports) -> bool:
    if entry.state is not ChannelState.RELEASED:
        return False
    return not reports.blocking(entry) and not reports.holders(entry.channel)


def reusable_channels(entries: Iterable[ChannelAssignment], reports: NodeReports) -> set[int]:
    """As `is_reusable` for each, but the acknowledgments are compared once for each epoch."""
    released = [entry for entry in entries if entry.state is ChannelState.RELEASED]
    blocked = {entry.released_epoch for entry in _distinct(released, reports) if reports.blocking(entry)}
    if not reports.suspended:
        released = [entry for entry in released if entry.released_epoch not in blocked]
    return {entry.channel for entry in released if is_reusable(entry, reports)}


def _distinct(released: Iterable[ChannelAssignment], reports: NodeReports) -> Iterable[ChannelAssignment]:
    """Released channels for which `NodeReports.blocking` may differ: many are released in one epoch."""
    return released if reports.suspended else {entry.released_epoch: entry for entry in released}.values()


class EpochPlan(NamedTuple):
    epoch: int
    recheck_after: float | None = None
    """Seconds after which a release has waited long enough for the next epoch."""


def next_epoch(
    epoch: int,
    entries: Iterable[ChannelAssignment],
    reports: NodeReports,
    *,
    unmet_demand: bool,
    now: datetime,
) -> EpochPlan:
    waiting = [e for e in entries if e.state is ChannelState.RELEASED and e.released_epoch >= epoch]
    # Never more than one epoch ahead of the slowest member that is not Suspended, and not before one of these has
    # acknowledged: `recovery.reset_if_stale` depends on it, as do `plausibility` and the fence of each node.
    if not waiting or not reports.may_advance(epoch):
        return EpochPlan(epoch)
    remaining = PATIENCE - max(_age(entry, now) for entry in waiting)
    if unmet_demand or len(waiting) >= BATCH or remaining <= 0:
        return EpochPlan(epoch + 1)
    return EpochPlan(epoch, remaining)


def _age(entry: ChannelAssignment, now: datetime) -> float:
    return (now - datetime.fromisoformat(entry.released_at)).total_seconds() if entry.released_at else PATIENCE


def reuse_problem(
    pending_reports: Sequence[str],
    outdated: Sequence[str],
    entries: Iterable[ChannelAssignment],
    epoch: int,
    reports: NodeReports,
) -> Explanation | None:
    """Why released channels are not reused. `outdated`: members that have not applied a required member list."""
    if pending_reports:
        return partitionreasons.reports_pending(nodes=pending_reports)
    if outdated:
        return partitionreasons.member_lists_outdated(nodes=outdated)
    count, found = blockers(entries, epoch, reports)
    return partitionreasons.channels_held(count=count, blockers=found) if found else None


def blockers(entries: Iterable[ChannelAssignment], epoch: int, reports: NodeReports) -> tuple[int, list[str]]:
    """How many released channels this epoch covers, and what still prevents their reuse."""
    covered = [e for e in entries if e.state is ChannelState.RELEASED and e.released_epoch < epoch]
    missing = set[str]().union(*(reports.blocking(entry) for entry in _distinct(covered, reports)))
    found = [_missing_report(reports, node, epoch) for node in sorted(missing)]
    found += [
        f"{node} holds channel {entry.channel} (delete the pod that uses it)"
        for entry in covered
        for node in reports.holders(entry.channel)
    ]
    return len(covered), found


def _missing_report(reports: NodeReports, node: str, epoch: int) -> str:
    missing = "does not report" if reports.acknowledged_epoch(node) < 0 else f"has not acknowledged epoch {epoch}"
    return f"{node} {missing} (start it; if it will not return, run imex forget-node)"
