"""What a ComputeDomain says of itself, from its live claims and the nodes they are on. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from imex_dra.api.computedomain import (
    MAX_LISTED_NODES,
    READY,
    ComputeDomain,
    ComputeDomainStatus,
    DomainNode,
    DomainPartition,
    DomainSummary,
    Readiness,
)
from imex_dra.api.meta import Condition
from imex_dra.api.nvlinknode import FabricState, NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelState, Member, MemberState, NVLinkPartition
from imex_dra.api.reasons import Reason, sentence
from imex_dra.kube.conditions import with_condition

_NAMED_IN_A_SENTENCE = 5

Obstacle = tuple[Reason, str]


def domain_status(
    domain: ComputeDomain,
    nodes: Sequence[str],
    *,
    cards: Mapping[str, NVLinkNode],
    partitions: Sequence[NVLinkPartition],
    conditions: tuple[Condition, ...],
    now: datetime,
    obstacle: Obstacle | None = None,
) -> ComputeDomainStatus:
    """`nodes` are those with an allocated claim; `obstacle` is what stands in the way of them all, if anything."""
    members = {m.node: (p, m) for p in partitions for m in p.status.members if m.state is not MemberState.LEAVING}
    entries = [_entry(name, members.get(name), cards.get(name)) for name in sorted(nodes)]
    served = {"", *(p.metadata.name for p in partitions if _channel(p, domain) is not None)}
    entries = [entry if entry.clique_id in served else _not_ready(entry) for entry in entries]
    entries = _with_connections(entries, cards)
    entries.sort(key=lambda entry: (entry.status is Readiness.READY, entry.name))
    ready, reason, message = (False, *obstacle) if obstacle else _verdict(domain, entries)
    held = [_partition(p, domain, entries) for p in partitions if _channel(p, domain) is not None]
    return ComputeDomainStatus(
        status=Readiness.READY if ready else Readiness.NOT_READY,
        nodes=tuple(entries[:MAX_LISTED_NODES]),
        nodes_omitted=max(0, len(entries) - MAX_LISTED_NODES),
        partitions=tuple(held),
        conditions=with_condition(
            conditions,
            READY,
            status=ready,
            reason=reason,
            message=message,
            now=now,
            generation=domain.metadata.generation,
        ),
        summary=_summary(domain, entries, held),
    )


def _entry(name: str, membership: tuple[NVLinkPartition, Member] | None, card: NVLinkNode | None) -> DomainNode:
    if membership is not None:
        partition, member = membership
        ready = Readiness.READY if member.state is MemberState.READY else Readiness.NOT_READY
        return DomainNode(name, member.address, partition.metadata.name, member.slot, ready)
    no_fabric = card is not None and card.status.fabric.state is FabricState.NONE
    return DomainNode(name, "", "", -1, Readiness.READY if no_fabric else Readiness.NOT_READY)


def _with_connections(entries: list[DomainNode], cards: Mapping[str, NVLinkNode]) -> list[DomainNode]:
    """A node is ready only if it is connected with the others of this ComputeDomain in its partition."""
    slots: dict[str, set[int]] = {}
    for entry in entries:
        slots.setdefault(entry.clique_id, set()).add(entry.index)
    return [_connected(entry, slots[entry.clique_id], cards.get(entry.name)) for entry in entries]


def _connected(entry: DomainNode, slots: set[int], card: NVLinkNode | None) -> DomainNode:
    reached = set(card.status.connected) if card else set()
    if not entry.clique_id or slots - {entry.index} <= reached:
        return entry
    return _not_ready(entry)


def _not_ready(entry: DomainNode) -> DomainNode:
    return DomainNode(entry.name, entry.ip_address, entry.clique_id, entry.index, Readiness.NOT_READY)


def _verdict(domain: ComputeDomain, entries: Sequence[DomainNode]) -> tuple[bool, Reason, str]:
    waiting = [entry.name for entry in entries if entry.status is not Readiness.READY]
    wanted = domain.spec.num_nodes
    if waiting:
        names = ", ".join(waiting[:_NAMED_IN_A_SENTENCE])
        names += f" and {len(waiting) - _NAMED_IN_A_SENTENCE} more" if len(waiting) > _NAMED_IN_A_SENTENCE else ""
        facts = {"count": len(waiting), "total": len(entries), "nodes": names}
        return False, Reason.NODES_NOT_READY, sentence(Reason.NODES_NOT_READY, **facts)
    if len(entries) < wanted:
        return False, Reason.FEWER_NODES, sentence(Reason.FEWER_NODES, count=len(entries), wanted=wanted)
    if not entries:
        return True, Reason.NO_PODS_YET, sentence(Reason.NO_PODS_YET)
    return True, Reason.NODES_READY, sentence(Reason.NODES_READY, count=len(entries))


def _channel(partition: NVLinkPartition, domain: ComputeDomain) -> int | None:
    mine = (
        entry.channel
        for entry in partition.status.channels
        if entry.state is ChannelState.ASSIGNED and entry.compute_domain.uid == domain.metadata.uid
    )
    return next(mine, None)


def _partition(
    partition: NVLinkPartition, domain: ComputeDomain, entries: Sequence[DomainNode]
) -> DomainPartition:
    channel = _channel(partition, domain)
    assert channel is not None
    here = [entry for entry in entries if entry.clique_id == partition.metadata.name]
    ready = sum(entry.status is Readiness.READY for entry in here)
    return DomainPartition(partition.metadata.name, channel, len(here), ready)


def _summary(
    domain: ComputeDomain, entries: Sequence[DomainNode], held: Sequence[DomainPartition]
) -> DomainSummary:
    ready = sum(entry.status is Readiness.READY for entry in entries)
    total = max(len(entries), domain.spec.num_nodes)
    channels = ",".join(str(partition.channel) for partition in held)
    return DomainSummary(nodes=f"{ready}/{total}", partitions=str(len(held)), channels=channels)
