"""Recovery of a partition status that was lost or restored from a backup. Pure.

NVLinkNodes prove that a status is stale: a node acknowledged an epoch, applied a member list, or holds a channel,
that the status does not know. So does the leader's own memory of what it wrote. The status is then reset. What
other objects know of its channels is merged into it (`evidence`). Members stay members, ComputeDomains whose
channel is known are served, and daemons and running workloads are not affected. But no node joins and no channel
is assigned until every node that may hold a channel has acknowledged the new epoch, and until every member has
applied the new member list, because a node that has vanished is still connected to daemons with an older list. See
docs/design/channel-reuse.md and docs/design/membership.md.
"""

from collections.abc import Iterable, Mapping, Set
from datetime import datetime

from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import FabricState, NVLinkNode, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import Member, MemberState, NVLinkPartitionStatus
from imex_dra.controller.evidence import recorded_channels, unrecorded_holders
from imex_dra.controller.membership import MemberPlan, counted, staying
from imex_dra.controller.plausibility import Counters


def reset_if_stale(
    partition: PartitionId,
    status: NVLinkPartitionStatus,
    nvlink_nodes: Mapping[str, NVLinkNode],
    domains: Iterable[ComputeDomain],
    labeled_nodes: Iterable[str],
    now: datetime,
    known: Counters | None = None,
) -> NVLinkPartitionStatus:
    """`nvlink_nodes`: without implausible reports. `labeled_nodes`: nodes that were in this partition, according
    to the clique label on their Node. `known`: the counters as this leader last wrote or confirmed them.
    """
    reports = {n: node.status for n, node in nvlink_nodes.items() if node.status.partition == partition}
    epoch, generation, _ = _highest_counters(reports.values(), known)
    # The counters of a partition grow by far less than one a second. So if they start at the time in seconds, they
    # are above those of every earlier object of this name, even if no node that knows them reports at the moment.
    # Otherwise a node that was off would return with counters that seem impossible (`plausibility`).
    start = int(now.timestamp())
    is_stale = _is_stale(partition, status, nvlink_nodes, known)
    if status.epoch and not is_stale:
        return status
    # Epoch 0 is a status that was never written: of a new partition, or of one whose object was deleted.
    if not is_stale and not _was_used(partition, nvlink_nodes.values(), domains):
        return structs.replace(status, epoch=start, generation=start)
    nodes = {*reports, *labeled_nodes, *status.pending_reports, *(member.node for member in status.members)}
    return structs.replace(
        status,
        # A node stores its fence before it reports it, and the lost status was at most one epoch ahead of its
        # slowest member that is not Suspended (`epochs.next_epoch`). So a fence may be one above every reported
        # epoch, as long as the report of one such member is left. With +1, that node would acknowledge the new
        # epoch although a prepare with the lost status still passes its fence. A Suspended member may lag behind
        # by many epochs; it is below the new one in any case.
        epoch=max(epoch, status.epoch, start) + 2,
        # Above every generation that a daemon may have applied, also if the addresses turn out to be the same:
        # every member must confirm a list that does not contain nodes which have vanished.
        generation=max(generation, status.generation, start) + 1,
        required_generation=max(generation, status.generation, start) + 1,
        members=tuple(staying(status.members)),
        pending_reports=tuple(sorted(nodes)),
    )


def may_recover(
    partition: PartitionId,
    status: NVLinkPartitionStatus,
    nvlink_nodes: Mapping[str, NVLinkNode],
    known: Counters | None,
) -> bool:
    """Whether a plan may need evidence from other objects."""
    is_stale = _is_stale(partition, status, nvlink_nodes, known)
    return is_stale or not status.epoch or bool(status.pending_reports)


def _is_stale(
    partition: PartitionId,
    status: NVLinkPartitionStatus,
    nvlink_nodes: Mapping[str, NVLinkNode],
    known: Counters | None,
) -> bool:
    reports = (node.status for node in nvlink_nodes.values() if node.status.partition == partition)
    epoch, generation, _ = _highest_counters(reports, known)
    if epoch > status.epoch or generation > status.generation:
        return True
    # While reports are pending, what they hold is merged into the status.
    if status.pending_reports:
        return False
    # Only this leader removes a channel, and remembers that it did. The node that got it may report it later.
    lost = known.channels - recorded_channels(status) if known else frozenset()
    return bool(lost or unrecorded_holders(partition, status, nvlink_nodes))


def _highest_counters(reports: Iterable[NVLinkNodeStatus], known: Counters | None) -> Counters:
    all_known = [Counters(report.acknowledged_epoch, report.applied_generation) for report in reports]
    all_known += [known] if known else [Counters(0, 0)]
    return Counters(max(one.epoch for one in all_known), max(one.generation for one in all_known))


def kept_members(
    partition: PartitionId,
    stale: Iterable[Member],
    nvlink_nodes: Mapping[str, NVLinkNode],
    not_ready_nodes: Set[str],
    epoch: int,
) -> tuple[Member, ...]:
    """The members of a partition that waits for reports.

    No daemon gets a member list meanwhile (`imex.memberlist`), so this decides only which nodes are served with
    the channels that are known. That is safe for a node whose daemon runs with the latest list that any daemon
    applied: it was a member then, and is connected to no node that had left before. Any other one may have left
    since the status was stored, and its channels may have been reused. It is kept as Suspended: with its index, if
    no daemon runs with it, but without channels, until all have reported and it passes admission.
    """
    reports = {n: node.status for n, node in nvlink_nodes.items() if node.status.partition == partition}
    running = {n: r for n, r in reports.items() if r.imex_partition == partition and r.index >= 0 and r.address}
    latest = max((report.applied_generation for report in running.values()), default=0)
    # The later generation first: of two nodes with one index, it keeps it, and the other one joins later.
    order = sorted(running, key=lambda node: (-running[node].applied_generation, node))
    before = {member.node: member for member in stale}
    members: dict[int, Member] = {}
    for node in order:
        report = running[node]
        state = _state_before(before.get(node), node not in not_ready_nodes)
        if report.applied_generation < latest:
            state = MemberState.SUSPENDED
        kept_member = Member(node, report.index, report.address, state, boot_id=report.boot_id)
        members.setdefault(report.index, kept_member)
    kept = {member.node for member in members.values()}
    for member in staying(before.values()):
        if member.node not in kept:
            members.setdefault(member.index, structs.replace(member, state=MemberState.SUSPENDED))
    # It may have been an active member in the lost status, so no earlier epoch counts as that of its suspension.
    dated = [_with_since(member, before.get(member.node), epoch) for member in members.values()]
    return tuple(sorted(dated, key=lambda member: member.index))


def _state_before(member: Member | None, is_node_ready: bool) -> MemberState:
    """`plan_members` goes on from there."""
    if member is None or member.state is MemberState.LEAVING:
        return MemberState.JOINING
    if member.state is MemberState.SUSPENDED and is_node_ready:
        return MemberState.JOINING
    return member.state


def _with_since(member: Member, before: Member | None, epoch: int) -> Member:
    same = before is not None and before.state is member.state
    since = before.since if before is not None and same else ""
    suspended_epoch = epoch if member.state is MemberState.SUSPENDED else 0
    return structs.replace(member, since=since, suspended_epoch=suspended_epoch)


def _was_used(
    partition: PartitionId, nvlink_nodes: Iterable[NVLinkNode], domains: Iterable[ComputeDomain]
) -> bool:
    """Whether the partition has ever assigned a channel, as far as other objects show."""
    listed = (entry.name for domain in domains for entry in domain.status.partitions)
    held = (held.partition for nvlink_node in nvlink_nodes for held in nvlink_node.status.held_channels)
    return partition in {*listed, *held}


def required_generation(
    partition: PartitionId,
    status: NVLinkPartitionStatus,
    planned: MemberPlan,
    nvlink_nodes: Mapping[str, NVLinkNode],
) -> int:
    """The member list that every member must have applied before a channel is assigned; 0 if any will do."""
    # A node may return with a daemon that runs with an older member list. Nodes in that list may have left since
    # and no longer block reuse of the channels they hold, but this daemon connects to them until it has applied
    # the new list.
    inside = {member.node for member in staying(status.members)}
    joining = [nvlink_nodes[m.node].status for m in staying(planned.members) if m.node not in inside]
    if any(s.imex_partition == partition and s.applied_generation < planned.generation for s in joining):
        return planned.generation
    return status.required_generation


def lagging(
    required_generation: int, members: Iterable[Member], nvlink_nodes: Mapping[str, NVLinkNode]
) -> list[str]:
    """Members that have not applied the required member list; none if there is no requirement."""
    if not required_generation:
        return []
    applied = {name: node.status.applied_generation for name, node in nvlink_nodes.items()}
    # A Suspended member gets no channel before it has applied the current list.
    return [member.node for member in counted(members) if applied.get(member.node, 0) < required_generation]


def still_pending(
    partition: PartitionId,
    status: NVLinkPartitionStatus,
    nvlink_nodes: Mapping[str, NVLinkNode],
    existing_nodes: Iterable[str],
) -> tuple[str, ...]:
    """The pending reports, without nodes that have acknowledged, are certainly elsewhere, or no longer exist."""
    existing = set(existing_nodes)
    return tuple(
        name
        for name in status.pending_reports
        if name in existing and not _has_reported(partition, status.epoch, nvlink_nodes.get(name))
    )


def _has_reported(partition: PartitionId, epoch: int, nvlink_node: NVLinkNode | None) -> bool:
    if nvlink_node is None:
        return False
    status = nvlink_node.status
    if status.partition not in ("", partition) or status.fabric.state is FabricState.NONE:
        return True
    return status.partition == partition and status.acknowledged_epoch >= epoch
