"""Reports that cannot be true. Pure.

A report is a node's claim about itself, and costs at most that node its membership. Two claims could affect the
whole partition, and are checked here: that the partition had an epoch, a member list or an assignment which its
status does not know (the status is then reset, see `recovery`), and how many channels there are.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from imex_dra.api import partitionreasons
from imex_dra.api.limits import MAX_REPORTED_COUNTER
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import FabricState, ImexState, NVLinkNode, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import Member, MemberState, NVLinkPartitionStatus
from imex_dra.api.reasons import Explanation
from imex_dra.controller.evidence import recorded_channels, unrecorded_holders

_DEFAULT_CHANNEL_COUNT = 2048

_MAX_LAG = 100
"""Member lists by which all live members of a partition can lag behind one of them: a rack that starts."""


class Counters(NamedTuple):
    """Of a partition status."""

    epoch: int
    generation: int
    channels: frozenset[tuple[int, str]] = frozenset()
    """Numbers and ComputeDomains (`evidence.recorded_channels`)."""

    def __str__(self) -> str:
        return f"epoch {self.epoch} and member list {self.generation}"

    @classmethod
    def of(cls, status: NVLinkPartitionStatus) -> "Counters":
        return cls(status.epoch, status.generation, recorded_channels(status))


def implausible_reports(
    partition: PartitionId,
    status: NVLinkPartitionStatus,
    nvlink_nodes: Mapping[str, NVLinkNode],
    not_ready_nodes: Set[str],
    known: Counters | None,
) -> dict[str, Explanation]:
    """By node. `known`: the counters as this leader last wrote or confirmed them; None if it has just started."""
    reports = {n: node.status for n, node in nvlink_nodes.items() if node.status.partition == partition}
    witnesses = {
        member.node
        for member in status.members
        if member.state is MemberState.READY and member.node in reports and member.node not in not_ready_nodes
    }
    limit = _highest_possible(status, known, [reports[node] for node in witnesses])
    invented = {
        node: partitionreasons.invented_channel(node=node, partition=partition)
        for node in unrecorded_holders(partition, status, nvlink_nodes)
        # A status that this leader wrote was not restored.
        if known == Counters.of(status) and not status.pending_reports
    }
    return invented | {
        node: partitionreasons.implausible_report(
            node=node,
            partition=partition,
            reported=str(Counters(report.acknowledged_epoch, report.applied_generation)),
            known=str(Counters.of(status)),
        )
        for node, report in reports.items()
        if report.acknowledged_epoch > limit.epoch or report.applied_generation > limit.generation
    }


def _highest_possible(
    status: NVLinkPartitionStatus, known: Counters | None, witnesses: Sequence[NVLinkNodeStatus]
) -> Counters:
    highest = Counters(MAX_REPORTED_COUNTER, MAX_REPORTED_COUNTER)
    if not status.epoch:
        return highest
    # Only the leader increments the counters. A status that is below them was restored (`recovery`). While the
    # partition recovers this holds, too: its counters were set above all earlier ones (`recovery.reset_if_stale`).
    if known is not None and known.epoch >= status.epoch and known.generation >= status.generation:
        return known
    if status.pending_reports or not witnesses:
        return highest
    # A leader that has just started does not know what its predecessor wrote. But the epoch is never more than one
    # ahead of the slowest live member (`epochs.next_epoch`), and live members apply a list within seconds. So what
    # is far above the status contradicts members that know nothing above it. But if several agree, the status was
    # restored, and the member that knows nothing was Suspended in the lost one: it is back, and its report is old.
    epoch, generation = highest[:2]
    ahead = sum(witness.acknowledged_epoch > status.epoch + 1 for witness in witnesses)
    if ahead <= 1 and min(witness.acknowledged_epoch for witness in witnesses) <= status.epoch:
        epoch = status.epoch + 1
    above = sum(witness.applied_generation > status.generation for witness in witnesses)
    if above <= 1 and above < len(witnesses):
        generation = status.generation + _MAX_LAG
    return Counters(epoch, generation)


def contradicted_moves(
    partition: PartitionId,
    members: Iterable[Member],
    nvlink_nodes: Mapping[str, NVLinkNode],
    not_ready_nodes: Set[str],
) -> dict[str, str]:
    """Members that name another partition, or none, although a live member still reaches them here; with this
    witness.

    The daemon of a node that is really no longer here stops, and after a few seconds no member reaches it.
    """
    members = list(members)
    reports = {
        member.node: nvlink_nodes[member.node].status
        for member in members
        if member.state is MemberState.READY and member.node in nvlink_nodes and member.node not in not_ready_nodes
    }
    # A daemon that is not READY lists no member as unreachable.
    witnesses = {
        node: report
        for node, report in reports.items()
        if report.partition == partition and report.imex_state is ImexState.READY
    }
    return {
        member.node: witness
        for member in members
        if member.state is not MemberState.LEAVING and _has_gone(partition, nvlink_nodes.get(member.node))
        if (witness := _witness(member.node, witnesses)) is not None
    }


def _has_gone(partition: PartitionId, nvlink_node: NVLinkNode | None) -> bool:
    """By its own words."""
    if nvlink_node is None:
        return False
    status = nvlink_node.status
    return status.fabric.state is FabricState.NONE or status.partition not in ("", partition)


def _witness(node: str, witnesses: Mapping[str, NVLinkNodeStatus]) -> str | None:
    reaching = (name for name, report in sorted(witnesses.items()) if name != node)
    return next((name for name in reaching if node not in witnesses[name].unreachable), None)


def channel_count(members: Iterable[Member], nvlink_nodes: Mapping[str, NVLinkNode]) -> int:
    """The lower median of what the members report, so that one node cannot lower it for all."""
    present = [m.node for m in members if m.node in nvlink_nodes and m.state is not MemberState.LEAVING]
    reports = [nvlink_nodes[node].status for node in present or nvlink_nodes]
    counts = sorted(report.channel_count for report in reports if report.channel_count)
    return counts[(len(counts) - 1) // 2] if counts else _DEFAULT_CHANNEL_COUNT


def has_too_few_channels(nvlink_node: NVLinkNode, used: int) -> bool:
    """0 is a count that is not known yet."""
    return 0 < nvlink_node.status.channel_count < used
