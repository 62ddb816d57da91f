"""The nodes of a ComputeDomain: whether each one is ready, and if not, why. Pure.

A node with an allocated claim is ready if it is a Ready member of its partition, the ComputeDomain has a channel
there, it is connected to the other nodes of the ComputeDomain, and it has reported every claim as prepared.

Status names the culprit, not the witnesses. Nodes that list a dead node as unreachable stay ready: only pairs of
Ready members are compared, and of such a pair the node counts that more members cannot reach.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import structs

from imex_dra.api import domainreasons, nodereasons, partitionreasons
from imex_dra.api.computedomain import ComputeDomain, DomainNode, Readiness
from imex_dra.api.limits import MAX_TEXT
from imex_dra.api.meta import key_of
from imex_dra.api.nvlinknode import READY, FabricState, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import (
    CHANNELS_REUSABLE,
    ChannelState,
    Member,
    MemberState,
    NVLinkPartition,
)
from imex_dra.api.reasons import Explanation
from imex_dra.api.views import ResourceClaim
from imex_dra.controller.channels import FIRST_CHANNEL
from imex_dra.controller.membership import staying
from imex_dra.controller.plausibility import channel_count
from imex_dra.kube.conditions import find_condition

Reports = Mapping[str, NVLinkNode]
"""NVLinkNodes by node."""


def domain_nodes(
    domain: ComputeDomain,
    claims: Iterable[ResourceClaim],
    partitions: Sequence[NVLinkPartition],
    reports: Reports,
    *,
    max_per_namespace: int = 0,
) -> list[DomainNode]:
    """`claims`: allocated ones. `partitions`: at least those of their nodes. `reports`: of all their members.
    `max_per_namespace`: as in `channel_obstacle`.
    """
    claims_on: dict[str, list[ResourceClaim]] = {}
    for claim in claims:
        for node in claim.nodes:
            claims_on.setdefault(node, []).append(claim)
    members = {member.node: (p, member) for p in partitions for member in staying(p.status.members)}
    daemons = {entry.name: entry.imex_started_at for entry in domain.status.nodes}
    disconnected: dict[str, Explanation] = {}
    obstacles: dict[str, Explanation | None] = {}
    for each in partitions:
        disconnected |= disconnected_nodes(each, claims_on.keys(), reports)
        obstacles[each.metadata.name] = channel_obstacle(each, domain, reports, max_per_namespace)
    entries = []
    for node in sorted(claims_on):
        partition, member = members.get(node, (None, None))
        obstacle = (
            _node_obstacle(node, member, reports.get(node))
            or (obstacles[partition.metadata.name] if partition else None)
            or disconnected.get(node)
            or _claims_obstacle(node, claims_on[node], reports.get(node))
        )
        started_at = _imex_started_at(claims_on[node], reports.get(node), daemons.get(node, ""))
        entries.append(structs.replace(_entry(node, partition, member, obstacle), imex_started_at=started_at))
    return sorted(entries, key=lambda entry: (entry.status is Readiness.READY, entry.name))


def channel_of(partition: NVLinkPartition, domain: ComputeDomain) -> int | None:
    own = (
        entry.channel
        for entry in partition.status.channels
        if entry.state is ChannelState.ASSIGNED and entry.compute_domain.uid == domain.metadata.uid
    )
    return next(own, None)


def channel_obstacle(
    partition: NVLinkPartition, domain: ComputeDomain, reports: Reports, max_per_namespace: int = 0
) -> Explanation | None:
    """Why the ComputeDomain has no channel in the partition. `max_per_namespace`: how many channels its namespace
    may have there; 0 for no limit.
    """
    if channel_of(partition, domain) is not None:
        return None
    name, status = partition.metadata.name, partition.status
    if status.pending_reports or status.required_generation:
        condition = find_condition(status.conditions, CHANNELS_REUSABLE)
        return partitionreasons.assignment_blocked(
            partition=name, cause=condition.message if condition else "it recovers"
        )
    # In the order of `channels.plan_channels`: a namespace at its limit gets none of the free channels.
    namespace = domain.metadata.namespace
    if 0 < max_per_namespace <= _assigned_in(partition, namespace):
        return partitionreasons.channel_limit(partition=name, namespace=namespace, limit=max_per_namespace)
    usable = channel_count(status.members, reports) - FIRST_CHANNEL
    if usable <= len(status.channels):
        return partitionreasons.channels_exhausted(partition=name, count=usable)
    # The next step of this explanation is to look for the controller, which is this program.
    return partitionreasons.no_channel_assigned(domain=str(key_of(domain)), partition=name)._replace(next_step="")


def _assigned_in(partition: NVLinkPartition, namespace: str) -> int:
    assigned = (e.compute_domain for e in partition.status.channels if e.state is ChannelState.ASSIGNED)
    return sum(domain.namespace == namespace for domain in assigned)


def disconnected_nodes(
    partition: NVLinkPartition, nodes: Collection[str], reports: Reports
) -> dict[str, Explanation]:
    """Those of the nodes that cannot reach others of them, although all of them are Ready members."""
    ready = {member.node for member in partition.status.members if member.state is MemberState.READY}
    missed = {
        (node, other)
        for node in ready
        if (report := reports.get(node)) is not None
        for other in report.status.unreachable
        if other in ready and other != node
    }
    pairs = sorted({(min(pair), max(pair)) for pair in missed})
    # The whole partition is the evidence: with only two nodes in the ComputeDomain, other members show which of
    # the two is cut off, also in the time before its Node is NotReady.
    failures = Counter(node for pair in pairs for node in pair)
    others: dict[str, list[str]] = {}
    for first, second in pairs:
        if first not in nodes or second not in nodes:
            continue
        # If they fail equally often, in a cut between two live nodes each misses the other. A node that is missed
        # and misses no other may be dead, and its last report old; the other one is only a witness.
        ahead = failures[first] - failures[second]
        if ahead > 0 or (ahead == 0 and (second, first) in missed):
            others.setdefault(first, []).append(second)
        if ahead < 0 or (ahead == 0 and (first, second) in missed):
            others.setdefault(second, []).append(first)
    return {node: domainreasons.nodes_not_connected(node=node, others=cut) for node, cut in others.items()}


def publication_obstacle(report: NVLinkNode) -> Explanation | None:
    """Why the node publishes no devices, as far as its report shows."""
    node, status = report.metadata.name, report.status
    if status.fabric.state is FabricState.NONE:
        return None
    if status.fabric.state is FabricState.PENDING:
        return nodereasons.fabric_pending(node=node, cause=status.fabric.reason or "its state is not known")
    if status.fabric.state is FabricState.BROKEN:
        return nodereasons.fabric_broken(node=node, cause=status.fabric.reason)
    if status.imex_state is not ImexState.READY:
        return _daemon_not_ready(report)
    cause = _own_words(report)
    return domainreasons.node_not_ready(node=node, state=MemberState.NOT_READY, cause=cause) if cause else None


def consumers(claims: Iterable[ResourceClaim]) -> list[str]:
    """The pods for which the claims are reserved or were created, or the name of a claim without a pod."""
    names: set[str] = set()
    for claim in claims:
        owners = tuple(owner.name for owner in claim.metadata.owner_references if owner.kind == "Pod")
        names.update(claim.pods or owners or (claim.metadata.name,))
    return sorted(names)


def _node_obstacle(node: str, member: Member | None, report: NVLinkNode | None) -> Explanation | None:
    since = member.since if member else ""
    if report is None or not (report.status.partition or report.status.fabric.state is FabricState.NONE):
        return _fabric_obstacle(node, report) or domainreasons.no_report(node=node, since=since)
    if member is None:
        if report.status.fabric.state is FabricState.NONE:
            return None  # Its pods run without a channel.
        return _fabric_obstacle(node, report) or partitionreasons.not_a_member(
            node=node, partition=report.status.partition
        )
    match member.state:
        case MemberState.READY:
            return None
        case MemberState.UNKNOWN | MemberState.SUSPENDED:
            return domainreasons.node_unreachable(node=node, since=since)
    return (
        _fabric_obstacle(node, report)
        or _daemon_obstacle(node, member, report)
        or domainreasons.node_not_ready(node=node, state=member.state, cause=_own_words(report))
    )


def _fabric_obstacle(node: str, report: NVLinkNode | None) -> Explanation | None:
    fabric = report.status.fabric if report else None
    if fabric is not None and fabric.state is FabricState.BROKEN:
        return nodereasons.fabric_broken(node=node, cause=fabric.reason)
    if fabric is not None and fabric.state is FabricState.PENDING and fabric.reason:
        return nodereasons.fabric_pending(node=node, cause=fabric.reason)
    return None


def _daemon_obstacle(node: str, member: Member, report: NVLinkNode) -> Explanation | None:
    status = report.status
    if status.imex_state is not ImexState.READY:
        return _daemon_not_ready(report)
    if status.index != member.index:
        running, assigned = status.index, member.index
        return nodereasons.index_differs(node=node, partition=status.partition, running=running, assigned=assigned)
    return None


def _daemon_not_ready(report: NVLinkNode) -> Explanation:
    """With the cause, if the node says it: its sentence begins in the same way."""
    node, words = report.metadata.name, _own_words(report)
    found = nodereasons.daemon_not_ready(node=node, state=report.status.imex_state, problem="")
    return found._replace(cause=words) if words.startswith(found.cause) else found


def _own_words(report: NVLinkNode) -> str:
    """Why the node says that it cannot serve claims; empty if it does not say so."""
    ready = find_condition(report.status.conditions, READY)
    return ready.message[:MAX_TEXT] if ready is not None and ready.status == "False" else ""


def _claims_obstacle(node: str, claims: Sequence[ResourceClaim], report: NVLinkNode | None) -> Explanation | None:
    prepared = set(report.status.prepared_claims) if report else set()
    missing = [claim for claim in claims if claim.metadata.uid not in prepared]
    return domainreasons.claims_not_prepared(node=node, claims=consumers(missing)) if missing else None


def _imex_started_at(claims: Sequence[ResourceClaim], report: NVLinkNode | None, before: str) -> str:
    """Of the daemon that serves the claims. Kept while none of them is prepared, as after a reboot: a restart is
    found by comparison with the daemon that served them before.
    """
    prepared = set(report.status.prepared_claims) if report else set()
    is_serving = any(claim.metadata.uid in prepared for claim in claims)
    return (report.status.imex_started_at if report and is_serving else "") or before


def _entry(
    node: str, partition: NVLinkPartition | None, member: Member | None, obstacle: Explanation | None
) -> DomainNode:
    if partition is not None and member is not None:
        entry = DomainNode(node, member.address, partition.metadata.name, member.index)
    else:
        entry = DomainNode(node, "", "")
    if obstacle is not None:
        # Only the cause: the next step of some explanations is for the user of a pod.
        return structs.replace(entry, reason=obstacle.reason, message=obstacle.cause)
    remark = None if member else domainreasons.no_fabric(nodes=[node])
    return structs.replace(
        entry,
        status=Readiness.READY,
        reason=remark.reason if remark else "",
        message=remark.message() if remark else "",
    )
