"""Brings one NVLinkPartition up to date: members from cards, channels from claims, in one write.

Nothing else writes an NVLinkPartition, and one worker handles one partition at a time; the resourceVersion guards
against another controller that believes to be leader.
"""

from collections.abc import AsyncIterator, Iterable

import structlog
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS, AllocationMode
from imex_dra.api.meta import AnnotatedMeta, Key, is_deleting
from imex_dra.api.names import PARTITION_FINALIZER, RELEASE_ANNOTATION, RELEASE_NOW, PartitionId, name_format
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import (
    NVLINK_PARTITIONS,
    ChannelState,
    DomainReference,
    NVLinkPartition,
    NVLinkPartitionSpec,
)
from imex_dra.api.reasons import Reason, sentence
from imex_dra.api.views import RESOURCE_CLAIMS
from imex_dra.base.clock import Clock
from imex_dra.base.errors import AlreadyExists, NotFound
from imex_dra.controller.channels import Want
from imex_dra.controller.decision import Decision, Seen, decide
from imex_dra.controller.observed import Observed, claim_nodes, domain_uids
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.events import EventRecorder
from imex_dra.kube.patch import patch_changes

log = structlog.get_logger()

SLOTS = 24
"""The 18 nodes of an NVL72 and six spares, for nodes that are replaced while their slot may not be used yet."""


class Partitions:
    def __init__(self, client: Client, observed: Observed, events: EventRecorder, clock: Clock) -> None:
        self._client = client
        self._observed = observed
        self._events = events
        self._clock = clock

    async def reconcile(self, name: PartitionId) -> None:
        live = self._observed.partitions.get(Key("", name))
        if live is None:
            if not any(card.status.partition == name for card in self._observed.cards.by("partition", name)):
                return
            live = await self._create(name)
        seen = await self._seen(name, live)
        decision = decide(seen, self._clock.now())
        after = structs.replace(live, status=decision.status)
        self._observed.partitions.upsert(
            await patch_changes(self._client, NVLINK_PARTITIONS, live, after, subresource="status")
        )
        self._announce(seen, decision)

    async def _seen(self, name: PartitionId, live: NVLinkPartition) -> Seen:
        observed, members = self._observed, {member.node for member in live.status.members}
        labelled = {node.metadata.name for node in observed.nodes.by("clique", name)}
        cards = {card.metadata.name: card for card in observed.cards.by("partition", name)}
        for node in members | labelled | set(live.status.awaited):
            if (card := observed.cards.get(Key("", node))) is not None:
                cards[node] = card
        relevant = cards.keys() | members | labelled | set(live.status.awaited)
        return Seen(
            name=name,
            status=live.status,
            slots=live.spec.slots,
            cards=cards,
            nodes={node for node in relevant if observed.nodes.get(Key("", node)) is not None},
            labelled=labelled,
            domains=tuple(observed.domains.values()),
            wants={node: self._wants(node) for node in relevant},
            released={uid async for uid in self._released(live)},
            refused={d.metadata.uid for d in observed.domains.values() if observed.is_refused(d)},
            users=self._users(card for card in cards.values() if card.metadata.name not in members),
        )

    async def _create(self, name: PartitionId) -> NVLinkPartition:
        wanted = NVLinkPartition(
            AnnotatedMeta(name=name, finalizers=(PARTITION_FINALIZER,)),
            NVLinkPartitionSpec(slots=SLOTS, name_format=name_format(name)),
        )
        try:
            return await self._client.create(NVLINK_PARTITIONS, wanted)
        except AlreadyExists:
            return await self._client.get(NVLINK_PARTITIONS, Key("", name))

    def _wants(self, node: str) -> set[Want]:
        """Of the claims on a node: the ComputeDomains that may have a channel."""
        wants = set()
        for claim in self._observed.claims.by("node", node):
            for uid in domain_uids(claim):
                domain = self._observed.domain(uid)
                if domain is None or domain.metadata.namespace != claim.metadata.namespace:
                    continue
                if not is_deleting(domain) and not self._observed.is_refused(domain):
                    meta = domain.metadata
                    reference = DomainReference(meta.namespace, meta.name, meta.uid)
                    wants.add(Want(reference, domain.allocation_mode is AllocationMode.ALL))
        return wants

    def _users(self, cards: Iterable[NVLinkNode]) -> dict[tuple[str, str], str]:
        """Whose pods hold the channels of nodes that wait at the door."""
        users = {}
        for card in cards:
            node = card.metadata.name
            for held in card.status.held_channels:
                claims = [
                    c for c in self._observed.claims.by("domain", held.compute_domain) if node in claim_nodes(c)
                ]
                pods = sorted({f"{c.metadata.namespace}/{pod}" for c in claims for pod in c.pods})
                if pods:
                    users[node, held.compute_domain] = "pods " + ", ".join(pods)
        return users

    async def _released(self, live: NVLinkPartition) -> AsyncIterator[str]:
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

    def _announce(self, seen: Seen, decision: Decision) -> None:
        name, channels = seen.name, decision.channels
        for entry in channels.assigned:
            log.info("channel assigned", partition=name, channel=entry.channel, domain=entry.compute_domain.name)
            domain = self._observed.domain(entry.compute_domain.uid)
            if domain is not None:
                message = sentence(Reason.CHANNEL_ASSIGNED, channel=entry.channel, partition=name)
                self._events.note(COMPUTE_DOMAINS, domain, Reason.CHANNEL_ASSIGNED, message)
        if decision.status.recall != seen.status.recall:
            log.info("members are asked what they hold", partition=name, recall=decision.status.recall)
        for reference in channels.unserved if decision.is_open else ():
            domain = self._observed.domain(reference.uid)
            if domain is not None:
                message = sentence(Reason.CHANNELS_EXHAUSTED, partition=name, count=seen.channel_count - 1)
                self._events.warn(COMPUTE_DOMAINS, domain, Reason.CHANNELS_EXHAUSTED, message)


def _taken_away(metadata: AnnotatedMeta) -> bool:
    return metadata.annotations.get(RELEASE_ANNOTATION) == RELEASE_NOW
