"""Brings one NVLinkPartition up to date: members from cards, channels from claims, in one write.

Nothing else writes an NVLinkPartition, and one worker handles one partition at a time; the resourceVersion guards
against another controller that believes to be leader.
"""

from collections.abc import Iterable

import structlog
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS, AllocationMode
from imex_dra.api.meta import AnnotatedMeta, Key, is_deleting
from imex_dra.api.names import PARTITION_FINALIZER, RELEASE_ANNOTATION, RELEASE_NOW, PartitionId, name_format
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import (
    NVLINK_PARTITIONS,
    ChannelAssignment,
    ChannelState,
    DomainReference,
    Member,
    MemberState,
    NVLinkPartition,
    NVLinkPartitionSpec,
    NVLinkPartitionStatus,
    PartitionState,
    PartitionSummary,
)
from imex_dra.api.reasons import Reason, sentence
from imex_dra.api.views import RESOURCE_CLAIMS
from imex_dra.base.clock import Clock
from imex_dra.base.errors import AlreadyExists, NotFound
from imex_dra.controller.channels import Channels, Want, plan_channels, rebuilt
from imex_dra.controller.membership import Roster, plan_members
from imex_dra.controller.observed import Observed, domain_uids
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.events import EventRecorder
from imex_dra.kube.patch import patch_changes

log = structlog.get_logger()

SLOTS = 24
"""The 18 nodes of an NVL72 and six spares, for nodes that are replaced while their slot may not be used yet."""

DEFAULT_CHANNEL_COUNT = 2048


class Partitions:
    def __init__(self, client: Client, observed: Observed, events: EventRecorder, clock: Clock) -> None:
        self._client = client
        self._observed = observed
        self._events = events
        self._clock = clock

    async def reconcile(self, name: PartitionId) -> None:
        live = self._observed.partitions.get(Key("", name))
        cards = self._cards(name, live)
        if live is None:
            if not any(card.status.partition == name for card in cards.values()):
                return
            live = await self._create(name)
        roster = self._roster(name, live, cards)
        channels = await self._channels(live, roster, cards)
        status = NVLinkPartitionStatus(
            generation=roster.generation,
            members=roster.members,
            channels=channels.assignments,
            conditions=live.status.conditions,
            summary=_summary(roster.members, channels),
        )
        after = structs.replace(live, status=status)
        self._observed.partitions.upsert(
            await patch_changes(self._client, NVLINK_PARTITIONS, live, after, subresource="status")
        )
        self._announce(name, channels, roster, cards)

    def _cards(self, name: PartitionId, live: NVLinkPartition | None) -> dict[str, NVLinkNode]:
        """Of everybody whose hardware names this partition, and of everybody who is a member."""
        cards = {card.metadata.name: card for card in self._observed.cards.by("partition", name)}
        for member in live.status.members if live else ():
            card = self._observed.cards.get(Key("", member.node))
            if card is not None:
                cards[member.node] = card
        return cards

    async def _create(self, name: PartitionId) -> NVLinkPartition:
        wanted = NVLinkPartition(
            AnnotatedMeta(name=name, finalizers=(PARTITION_FINALIZER,)),
            NVLinkPartitionSpec(slots=SLOTS, name_format=name_format(name)),
        )
        try:
            return await self._client.create(NVLINK_PARTITIONS, wanted)
        except AlreadyExists:
            return await self._client.get(NVLINK_PARTITIONS, Key("", name))

    def _roster(self, name: PartitionId, live: NVLinkPartition, cards: dict[str, NVLinkNode]) -> Roster:
        relevant = cards.keys() | {member.node for member in live.status.members}
        nodes = {node for node in relevant if self._observed.nodes.get(Key("", node)) is not None}
        roster = Roster(live.status.members, live.status.generation)
        return plan_members(name, roster, slots=live.spec.slots, cards=cards, nodes=nodes)

    async def _channels(self, live: NVLinkPartition, roster: Roster, cards: dict[str, NVLinkNode]) -> Channels:
        return plan_channels(
            live.status.channels if live.status.generation else self._rebuilt(live, cards),
            self._wants(roster.members),
            released={uid async for uid in self._released(live)},
            refused={d.metadata.uid for d in self._observed.domains.values() if self._observed.is_refused(d)},
            count=_channel_count(cards),
            now=self._clock.now(),
        )

    def _rebuilt(self, live: NVLinkPartition, cards: dict[str, NVLinkNode]) -> tuple[ChannelAssignment, ...]:
        """A record without a generation is new; if there was one before, ComputeDomains still tell of it."""
        name, domains = live.metadata.name, self._observed.domains.values()
        return rebuilt(name, domains, cards.values(), self._clock.now())

    def _wants(self, members: Iterable[Member]) -> set[Want]:
        wants = set()
        for member in members:
            if member.state is MemberState.LEAVING:
                continue
            for claim in self._observed.claims.by("node", member.node):
                for uid in domain_uids(claim):
                    domain = self._observed.domain(uid)
                    if domain is None or domain.metadata.namespace != claim.metadata.namespace:
                        continue
                    if not is_deleting(domain) and not self._observed.is_refused(domain):
                        meta = domain.metadata
                        reference = DomainReference(meta.namespace, meta.name, meta.uid)
                        wants.add(Want(reference, domain.allocation_mode is AllocationMode.ALL))
        return wants

    async def _released(self, live: NVLinkPartition):  # type: ignore[no-untyped-def]
        for entry in live.status.channels:
            if entry.state is ChannelState.ASSIGNED and await self._is_released(entry.compute_domain):
                yield entry.compute_domain.uid

    async def _is_released(self, reference: DomainReference) -> bool:
        """Seen in the cache, then confirmed live: a cache may be empty for a bad reason."""
        domain = self._observed.domain(reference.uid)
        if domain is not None and not is_deleting(domain):
            return False
        if domain is not None and self._observed.allocated_claims(domain) and not _taken_away(domain.metadata):
            return False
        try:
            found = await self._client.get(COMPUTE_DOMAINS, Key(reference.namespace, reference.name))
        except NotFound:
            return True
        if found.metadata.uid != reference.uid:
            return True
        if not is_deleting(found):
            return False
        if _taken_away(found.metadata):
            return True
        claims = await self._client.list(RESOURCE_CLAIMS, Selection(reference.namespace))
        return not any(reference.uid in domain_uids(claim) for claim in claims)

    def _announce(
        self, name: PartitionId, channels: Channels, roster: Roster, cards: dict[str, NVLinkNode]
    ) -> None:
        for entry in channels.assigned:
            log.info("channel assigned", partition=name, channel=entry.channel, domain=entry.compute_domain.name)
            domain = self._observed.domain(entry.compute_domain.uid)
            if domain is not None:
                message = sentence(Reason.CHANNEL_ASSIGNED, channel=entry.channel, partition=name)
                self._events.note(COMPUTE_DOMAINS, domain, Reason.CHANNEL_ASSIGNED, message)
        for reference in channels.unserved:
            domain = self._observed.domain(reference.uid)
            if domain is not None:
                facts = {"partition": name, "count": _channel_count(cards) - 1}
                message = sentence(Reason.CHANNELS_EXHAUSTED, **facts)
                self._events.warn(COMPUTE_DOMAINS, domain, Reason.CHANNELS_EXHAUSTED, message)
        for node in roster.homeless:
            log.error("no free slot for a node", partition=name, node=node)


def _taken_away(metadata: AnnotatedMeta) -> bool:
    return metadata.annotations.get(RELEASE_ANNOTATION) == RELEASE_NOW


def _channel_count(cards: dict[str, NVLinkNode]) -> int:
    return min(
        (c.status.channel_count for c in cards.values() if c.status.channel_count), default=DEFAULT_CHANNEL_COUNT
    )


def _summary(members: tuple[Member, ...], channels: Channels) -> PartitionSummary:
    staying = [member for member in members if member.state is not MemberState.LEAVING]
    ready = sum(member.state is MemberState.READY for member in staying)
    assigned = sum(entry.state is ChannelState.ASSIGNED for entry in channels.assignments)
    state = (
        PartitionState.DOWN
        if not ready
        else PartitionState.UP
        if ready == len(staying)
        else PartitionState.DEGRADED
    )
    return PartitionSummary(f"{ready}/{len(staying)}", str(assigned), state)
