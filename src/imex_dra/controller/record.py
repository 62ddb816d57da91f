"""A partition's record that was lost, or came back from a backup. Pure.

The cards know: a recall that was answered, or a member list that is applied, and that the record has never heard
of, proves that this record is not the last one. It is then completed, from what ComputeDomains say of their
channels and from what the nodes hold; what is contradictory rests. Until every node that may hold something has
answered a new recall, nobody is taken in and no number is given: daemons and running work go on as they are. And
until every member runs with the new list, because one that has vanished meanwhile is still in the old.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import FabricState, NVLinkNode
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    ChannelState,
    DomainReference,
    Member,
    MemberState,
    NVLinkPartitionStatus,
)
from imex_dra.base.clock import rfc3339

Claims = list[tuple[int, DomainReference]]

NOBODY = DomainReference("", "", "")
"""Whose a number is that two claim: so nobody who holds it may join, until one of them has let go."""


def renewed(
    partition: PartitionId,
    status: NVLinkPartitionStatus,
    cards: Mapping[str, NVLinkNode],
    domains: Iterable[ComputeDomain],
    labelled: Iterable[str],
) -> NVLinkPartitionStatus:
    """The record as it goes on: as it is, or, if it is not the last one, with nobody in it and everybody to be
    asked. Who is in an old list may have been put out since, and not in vain.

    `labelled`: nodes that were in this partition once, by the label that we left on them.
    """
    mine = {name: card.status for name, card in cards.items() if card.status.partition == partition}
    recall = max((card.answered_recall for card in mine.values()), default=0)
    generation = max((card.applied_generation for card in mine.values()), default=0)
    is_old = recall > status.recall or generation > status.generation
    if status.recall and not is_old:
        return status
    if not is_old and not _is_known(partition, cards.values(), domains):
        return structs.replace(status, recall=1)
    nodes = {*mine, *labelled, *status.awaited, *(member.node for member in status.members)}
    return structs.replace(
        status,
        recall=max(recall, status.recall) + 2,  # a node may have promised one more than any card says
        members=(),
        awaited=tuple(sorted(nodes)),
        open_generation=max(generation, status.generation) + 1,
    )


def behind(status: NVLinkPartitionStatus, members: Iterable[Member], cards: Mapping[str, NVLinkNode]) -> list[str]:
    """Members that do not yet run with the list that the record is opened with."""
    if not status.open_generation:
        return []
    staying = (member.node for member in members if member.state is not MemberState.LEAVING)
    return [node for node in staying if not _runs_with(status.open_generation, cards.get(node))]


def _runs_with(generation: int, card: NVLinkNode | None) -> bool:
    return card is not None and card.status.applied_generation >= generation


def _is_known(partition: PartitionId, cards: Iterable[NVLinkNode], domains: Iterable[ComputeDomain]) -> bool:
    """Whether anybody has ever been given a channel here, as far as they tell."""
    said = (held.name for domain in domains for held in domain.status.partitions)
    held = (held.partition for card in cards for held in card.status.held_channels)
    return partition in {*said, *held}


def still_awaited(
    partition: PartitionId, status: NVLinkPartitionStatus, cards: Mapping[str, NVLinkNode], nodes: Iterable[str]
) -> tuple[str, ...]:
    """Without those who answered, who are certainly elsewhere, or whose Node (`nodes`: all that exist) is gone."""
    existing = set(nodes)

    def is_missing(name: str) -> bool:
        card = cards.get(name)
        if card is None:
            return True
        elsewhere = card.status.partition not in ("", partition) or card.status.fabric.state is FabricState.NONE
        return not elsewhere and (
            card.status.partition != partition or card.status.answered_recall < status.recall
        )

    return tuple(name for name in status.awaited if name in existing and is_missing(name))


def completed(
    partition: PartitionId,
    entries: tuple[ChannelAssignment, ...],
    domains: Iterable[ComputeDomain],
    cards: Iterable[NVLinkNode],
    *,
    recall: int,
    now: datetime,
) -> tuple[ChannelAssignment, ...]:
    """With all that others know of this partition's channels; only while somebody is awaited."""
    living = {domain.metadata.uid: domain for domain in domains}
    said = _said_by_domains(partition, living.values())
    held = _held_on_nodes(partition, cards, living)
    known = {entry.channel: entry for entry in entries}
    for channel, reference in [*said, *held]:
        known[channel] = _merged(known, channel, reference, reference.uid in living, recall, now)
    return tuple(known[channel] for channel in sorted(known))


def _said_by_domains(partition: PartitionId, domains: Iterable[ComputeDomain]) -> Claims:
    found = [
        (held.channel, DomainReference(domain.metadata.namespace, domain.metadata.name, domain.metadata.uid))
        for domain in domains
        for held in domain.status.partitions
        if held.name == partition
    ]
    return sorted(found, key=lambda claim: (claim[0], claim[1].uid))


def _held_on_nodes(
    partition: PartitionId, cards: Iterable[NVLinkNode], living: Mapping[str, ComputeDomain]
) -> Claims:
    pairs = {
        (held.channel, held.compute_domain)
        for card in cards
        for held in card.status.held_channels
        if held.partition == partition
    }
    return [(channel, _reference(uid, living.get(uid))) for channel, uid in sorted(pairs)]


def _reference(uid: str, domain: ComputeDomain | None) -> DomainReference:
    return DomainReference(
        domain.metadata.namespace if domain else "", domain.metadata.name if domain else "", uid
    )


def _merged(
    known: Mapping[int, ChannelAssignment],
    channel: int,
    reference: DomainReference,
    lives: bool,
    recall: int,
    now: datetime,
) -> ChannelAssignment:
    """Assigned only if it is the one claim to this number, and the claimant's only number; nobody's if there are
    two.
    """
    entry = known.get(channel)
    if entry is not None and entry.compute_domain.uid == reference.uid:
        return entry
    has_another = any(
        other.compute_domain.uid == reference.uid and other.state is ChannelState.ASSIGNED
        for other in known.values()
    )
    if entry is None and lives and not has_another:
        return ChannelAssignment(channel, ChannelState.ASSIGNED, reference, since=rfc3339(now))
    if entry is None:
        return rested(ChannelAssignment(channel, ChannelState.RESTING, reference, ""), recall, now)
    return rested(structs.replace(entry, compute_domain=NOBODY), recall, now)


def rested(entry: ChannelAssignment, recall: int, now: datetime) -> ChannelAssignment:
    """Given back in a record with this recall; one that rests already keeps its own."""
    if entry.state is ChannelState.RESTING and entry.since:
        return entry
    return structs.replace(
        entry,
        state=ChannelState.RESTING,
        since=entry.since or rfc3339(now),
        released_at=rfc3339(now),
        recall=recall,
    )
