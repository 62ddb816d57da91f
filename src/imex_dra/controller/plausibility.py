"""Reports that cannot be true. Pure.

A report is a node's claim about itself, and costs at most that node its membership. Two claims could affect the
whole partition, and are checked here: that the partition had an epoch, a member list or an assignment which its
status does not know (the status is then reset, see `recovery`), and how many channels there are.
"""

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from imex_dra.api import reasons
from imex_dra.api.limits import MAX_REPORTED_COUNTER
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import ImexState, NVLinkNode, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import Member, MemberState, NVLinkPartitionStatus
from imex_dra.api.reasons import Explanation
from imex_dra.controller.evidence import recorded_channels, unrecorded_holders

_DEFAULT_CHANNEL_COUNT = 2048


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
    slowest = min((reports[node].acknowledged_epoch for node in witnesses), default=None)
    limit = _highest_possible(status, known, slowest)
    invented = {
        node: reasons.invented_channel(node=node, partition=partition)
        for node in unrecorded_holders(partition, status, nvlink_nodes)
        # A status that this leader wrote was not restored.
        if known == Counters.of(status) and not status.pending_reports
    }
    return invented | {
        node: reasons.implausible_report(
            node=node,
            partition=partition,
            reported=str(Counters(report.acknowledged_epoch, report.applied_generation)),
            known=str(Counters.of(status)),
        )
        for node, report in reports.items()
        if report.acknowledged_epoch > limit.epoch or report.applied_generation > limit.generation
    }


def _highest_possible(
    status: NVLinkPartitionStatus, known: Counters | None, slowest_acknowledgment: int | None
) -> Counters:
    highest = Counters(MAX_REPORTED_COUNTER, MAX_REPORTED_COUNTER)
    # A partition that recovers was put together from the reports that there were, so a later one may be higher.
    if not status.epoch or status.pending_reports:
        return highest
    # Only the leader increments the counters. A status that is below them was restored (`recovery`).
    if known is not None and known.epoch >= status.epoch and known.generation >= status.generation:
        return known
    # A leader that has just started does not know what its predecessor wrote. But the epoch is never more than one
    # ahead of the slowest live member (`epochs.next_epoch`), so a higher one contradicts that member.
    if slowest_acknowledgment is not None and slowest_acknowledgment <= status.epoch:
        return Counters(status.epoch + 1, MAX_REPORTED_COUNTER)
    return highest


def contradicted_moves(
    partition: PartitionId,
    members: Iterable[Member],
    nvlink_nodes: Mapping[str, NVLinkNode],
    not_ready_nodes: Set[str],
) -> dict[str, str]:
    """Members that name another partition although a live member still reaches them here; with this witness.

    The daemon of a node that has really moved stops, and after a few seconds no member reaches it.
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
        if member.state is not MemberState.LEAVING and _names_another(partition, nvlink_nodes.get(member.node))
        if (witness := _witness(member.node, witnesses)) is not None
    }


def _names_another(partition: PartitionId, nvlink_node: NVLinkNode | None) -> bool:
    return nvlink_node is not None and nvlink_node.status.partition not in ("", partition)


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
