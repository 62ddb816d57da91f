"""Prepares a claim: parse it, wait for a grant, persist it, answer the kubelet.

The kubelet retries a failed prepare only after 60 to 90 s. So a prepare waits inside the call, driven by events,
for its channel and for a ready IMEX daemon, and before the kubelet's limit of 45 s it returns the exact reason.
What waiting cannot change fails at once. Unprepare needs only the local disk. See docs/design/prepare.md.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from msgspec import structs

from imex_dra.api.claimreasons import claim_undecodable, no_such_claim
from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import Key, key_of
from imex_dra.api.nodereasons import fabric_pending
from imex_dra.api.nvlinknode import FabricState
from imex_dra.api.views import RESOURCE_CLAIMS
from imex_dra.base.clock import Clock
from imex_dra.base.errors import NotFound, NotYet, Rejected, Undecodable
from imex_dra.base.waiting import wait_any
from imex_dra.cdi.spec import device_id
from imex_dra.dra.plugin import ClaimId, PreparedDevice
from imex_dra.kube.client import Client, Selection
from imex_dra.node.apireads import DomainWatch, LivePartition, PrepareDeadline, watch_domain
from imex_dra.node.checkpoint import Checkpoint, PreparedClaim
from imex_dra.node.claim import ChannelRequest, base_request, parse_claim
from imex_dra.node.grant import (
    Grant,
    Obstacle,
    Snapshot,
    find_domain,
    grant_or_obstacle,
    grant_without_fabric,
    peers_obstacle,
    with_controllers_cause,
)
from imex_dra.node.prepared import PreparedClaims, StaleGrant
from imex_dra.node.state import NodeState

log = structlog.get_logger()

DEADLINE = 40.0
"""Seconds; the kubelet gives up after 45, and the answer needs some time to reach it."""


_STALE_PAUSE = 0.05
"""Seconds until a prepare decides again after its grant was refused."""


class ClaimPreparer:
    """Answers the kubelet's prepare and unprepare calls."""

    def __init__(
        self,
        client: Client,
        state: NodeState,
        prepared: PreparedClaims,
        clock: Clock,
        *,
        deadline: float = DEADLINE,
    ) -> None:
        self._client = client
        self._reads = client.without_retries()  # PrepareDeadline.call retries
        self._state = state
        self._prepared = prepared
        self._clock = clock
        self._deadline = deadline

    async def prepare(self, claim: ClaimId) -> tuple[PreparedDevice, ...]:
        deadline = PrepareDeadline(claim, self._state.snapshot.node, self._clock, limit=self._deadline)
        self._state.last_prepare = self._clock.monotonic()
        checkpoint = await asyncio.to_thread(self._prepared.read)
        held = checkpoint.claims.get(claim.uid)
        if held is not None and held.boot_id == await self._boot_id(deadline):
            await asyncio.to_thread(self._prepared.rewrite_spec, held)
            return _devices(held)
        log.info("preparing", claim=str(claim))
        async with self._live_partition(deadline, checkpoint) as live:
            request = await self._parse(deadline)
            prepared = await self._grant_and_persist(request, checkpoint, deadline, live)
        log.info("prepared", claim=str(claim), channel=prepared.channel, domain=prepared.domain_uid)
        self._state.last_prepare = self._clock.monotonic()
        self._state.update(prepares=self._state.snapshot.prepares + 1)
        return _devices(prepared)

    async def unprepare(self, claim: ClaimId) -> None:
        checkpoint = await asyncio.to_thread(self._prepared.remove, claim.uid)
        self._state.update(unprepare_sequence=checkpoint.unprepare_sequence)
        log.info("unprepared", claim=str(claim))

    async def _boot_id(self, deadline: PrepareDeadline) -> str:
        """Known after the first hardware reading; needed only for a claim that an earlier program prepared."""
        while deadline.remaining():
            changed, snapshot = self._state.changed, self._state.snapshot
            if snapshot.reading.boot_id:
                return snapshot.reading.boot_id
            await wait_any(changed, timeout=deadline.remaining())
        return ""

    @asynccontextmanager
    async def _live_partition(
        self, deadline: PrepareDeadline, checkpoint: Checkpoint
    ) -> AsyncIterator[LivePartition]:
        """Prefetches the partition while the claim is read, if it is certain to be needed: on a node that holds no
        channel, every ComputeDomain is new.
        """
        live, snapshot = LivePartition(self._client, deadline), self._state.snapshot
        if not snapshot.partition_id or checkpoint.live_claims(snapshot.reading.boot_id):
            yield live
            return
        async with live.prefetching(snapshot.partition_id):
            yield live

    async def _parse(self, deadline: PrepareDeadline) -> ChannelRequest:
        claim = deadline.claim
        key = Key(claim.namespace, claim.name)
        try:
            found = await deadline.call(lambda: self._reads.get(RESOURCE_CLAIMS, key))
        except NotFound as error:
            raise no_such_claim(claim=str(claim)).error(Rejected) from error
        except Undecodable as error:
            raise claim_undecodable(cause=str(error)).error(Rejected) from error
        return parse_claim(claim, found, self._state.snapshot.node)

    async def _grant_and_persist(
        self, request: ChannelRequest, began: Checkpoint, deadline: PrepareDeadline, live: LivePartition
    ) -> PreparedClaim:
        checkpoint = began
        while True:
            async with AsyncExitStack() as stack:
                grant = await self._wait_for_grant(request, checkpoint, deadline, live, stack)
            claim = prepared_claim(request, grant, self._state.snapshot)
            if claim.channel >= 0 and not claim.boot_id:
                # Without a boot ID the claim would never count as live, and its channel never as held.
                cause = "its boot ID is not known"
                raise fabric_pending(node=self._state.snapshot.node, cause=cause).error(NotYet)
            try:
                return await asyncio.to_thread(self._prepared.add, claim, checkpoint, grant.epoch)
            except StaleGrant:
                if not deadline.remaining():
                    raise
                # The node acknowledged a later epoch meanwhile: read the checkpoint again, wait for a new grant.
                # The unprepare sequence stays that of the call's beginning, or an unprepare since would be missed.
                # Until this program has seen what the node acknowledged, it decides as before: hence the pause.
                await asyncio.sleep(_STALE_PAUSE)
                latest = await asyncio.to_thread(self._prepared.read)
                checkpoint = structs.replace(latest, unprepare_sequence=latest.sequence_at(began))

    async def _wait_for_grant(
        self,
        request: ChannelRequest,
        checkpoint: Checkpoint,
        deadline: PrepareDeadline,
        live: LivePartition,
        stack: AsyncExitStack,
    ) -> Grant:
        domain: ComputeDomain | None = None
        domain_watch: DomainWatch | None = None
        while True:
            changed, snapshot = self._state.changed, self._state.snapshot
            assignment = snapshot.assignment(request.domain_uid)
            if domain is None and assignment is None:
                # Tells "not assigned yet" from "no such ComputeDomain", before any waiting.
                domain = await self._find_domain(request, deadline)
                request = request._replace(domain=str(key_of(domain)))
                continue
            if snapshot.reading.fabric.state is FabricState.NONE:
                return grant_without_fabric(snapshot, domain or await self._find_domain(request, deadline))
            if request.waits_for_peers:
                domain = domain or await self._find_domain(request, deadline)
            watched = domain_watch.changed if domain_watch else asyncio.Event()
            verdict = await decide(snapshot, request, checkpoint, live, _latest(domain, domain_watch))
            if isinstance(verdict, Grant):
                return verdict
            if verdict.terminal:
                raise verdict.explanation.error(Rejected)
            if domain_watch is None:
                name = domain.metadata.name if domain else assignment.compute_domain.name if assignment else ""
                watch = watch_domain(self._client, request, Key(request.claim.namespace, name))
                domain_watch = await stack.enter_async_context(watch)
                watched = domain_watch.changed
            await wait_any(changed, watched, timeout=deadline.remaining())
            domain_watch.check()
            if not changed.is_set() and not watched.is_set():
                return await _decide_at_deadline(
                    snapshot, request, checkpoint, live, _latest(domain, domain_watch), deadline
                )

    async def _find_domain(self, request: ChannelRequest, deadline: PrepareDeadline) -> ComputeDomain:
        """In the claim's namespace; if it is not there, in the whole cluster, to explain why."""
        namespace = Selection(request.claim.namespace)
        domains = await deadline.call(lambda: self._reads.list_decodable(COMPUTE_DOMAINS, namespace))
        if any(domain.metadata.uid == request.domain_uid for domain in domains):
            return find_domain(request, domains)
        return find_domain(request, await deadline.call(lambda: self._reads.list_decodable(COMPUTE_DOMAINS)))


def _latest(found: ComputeDomain | None, watch: DomainWatch | None) -> ComputeDomain | None:
    return watch.domain or found if watch else found


async def decide(
    snapshot: Snapshot,
    request: ChannelRequest,
    checkpoint: Checkpoint,
    live: LivePartition,
    domain: ComputeDomain | None = None,
) -> Grant | Obstacle:
    """A grant, or why there is none now. `domain` is needed only by a request that waits for its peers.

    The watched partition may be outdated, so a ComputeDomain that is new to this node is confirmed by a live read.
    One that holds the same channel here already needs none.
    """
    fence = checkpoint.fence(snapshot.partition_id)
    verdict: Grant | Obstacle = grant_or_obstacle(snapshot, request, fence)
    if isinstance(verdict, Grant) and request.waits_for_peers:
        verdict = peers_obstacle(snapshot, domain) or verdict
    if isinstance(verdict, Obstacle) or checkpoint.shares_channel(prepared_claim(request, verdict, snapshot)):
        live.discard()
        return verdict
    prefetched = structs.replace(snapshot, watched_partition=await live.prefetched())
    verdict = grant_or_obstacle(prefetched, request, fence)
    if isinstance(verdict, Grant):
        return verdict
    fetched = structs.replace(snapshot, watched_partition=await live.fetch(snapshot.partition_id))
    return grant_or_obstacle(fetched, request, fence)


async def _decide_at_deadline(
    snapshot: Snapshot,
    request: ChannelRequest,
    checkpoint: Checkpoint,
    live: LivePartition,
    domain: ComputeDomain | None,
    deadline: PrepareDeadline,
) -> Grant:
    """Raises NotYet with what is in the way now.

    The watch cannot answer that: after the API server was unreachable for a while, it may deliver the next version
    only after the whole call.
    """
    if snapshot.partition_id:
        snapshot = structs.replace(snapshot, watched_partition=await live.last_look(snapshot.partition_id))
    verdict: Grant | Obstacle = grant_or_obstacle(snapshot, request, checkpoint.fence(snapshot.partition_id))
    if isinstance(verdict, Grant) and request.waits_for_peers:
        verdict = peers_obstacle(snapshot, domain) or verdict
    if isinstance(verdict, Grant):
        return verdict
    explanation = with_controllers_cause(verdict.explanation, domain, snapshot)
    raise explanation.error(NotYet, waited=deadline.elapsed())


def prepared_claim(request: ChannelRequest, grant: Grant, snapshot: Snapshot) -> PreparedClaim:
    return PreparedClaim(
        uid=request.claim.uid,
        namespace=request.claim.namespace,
        name=request.claim.name,
        domain_uid=request.domain_uid,
        domain_name=grant.domain_name,
        partition=grant.partition,
        channel=grant.channel,
        all_channels=grant.all_channels,
        devices=tuple((base_request(result), result.pool, result.device) for result in request.results),
        boot_id=snapshot.reading.boot_id,
        channel_count=snapshot.reading.channel_count,
    )


def _devices(claim: PreparedClaim) -> tuple[PreparedDevice, ...]:
    return tuple(PreparedDevice(*device, (device_id(claim.uid),)) for device in claim.devices)
