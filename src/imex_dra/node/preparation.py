"""Preparing a claim: read it, wait for what it needs, write it down, answer.

The kubelet retries a failed prepare only after 60 to 90 s, so the call waits, driven by events, for a channel
and a ready daemon; before the kubelet's own 45 s are over it returns the exact reason. What no wait can cure fails
at once. Unpreparing needs nothing but the local disk, whatever is gone.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import Key, key_of
from imex_dra.api.nvlinknode import FabricState
from imex_dra.api.reasons import Reason, sentence
from imex_dra.api.views import RESOURCE_CLAIMS
from imex_dra.base.clock import Clock
from imex_dra.base.errors import NotFound, NotYet, Rejected
from imex_dra.base.waiting import first_of
from imex_dra.cdi.spec import device_id
from imex_dra.dra.plugin import ClaimId, PreparedDevice
from imex_dra.kube.client import Client, Selection
from imex_dra.node.call import Call
from imex_dra.node.checkpoint import Checkpoint, PreparedClaim
from imex_dra.node.claims import Wish, base_request, read_wish
from imex_dra.node.departure import Departure, watching
from imex_dra.node.grants import Grant, decide, expect_domain, without_fabric
from imex_dra.node.ledger import Ledger, Recalled
from imex_dra.node.livepartition import LivePartition
from imex_dra.node.readiness import Knowledge, Obstacle
from imex_dra.node.situation import Situation

log = structlog.get_logger()

DEADLINE = 40.0
"""Of the kubelet's 45 s; the rest is for the answer's way back."""


class Preparation:
    """Serves the kubelet's calls."""

    def __init__(
        self, client: Client, situation: Situation, ledger: Ledger, clock: Clock, *, deadline: float = DEADLINE
    ) -> None:
        self._client = client
        self._situation = situation
        self._ledger = ledger
        self._clock = clock
        self._deadline = deadline

    async def prepare(self, claim: ClaimId) -> tuple[PreparedDevice, ...]:
        call = Call(claim, self._situation.known.node, self._clock, limit=self._deadline)
        checkpoint = await asyncio.to_thread(self._ledger.read)
        held = checkpoint.claims.get(claim.uid)
        if held is not None and held.boot_id == await self._boot_id(call):
            await asyncio.to_thread(self._ledger.mend, held)
            return _devices(held)
        log.info("preparing", claim=str(claim))
        async with self._looking_ahead(call, checkpoint) as live:
            wish = await self._read(call)
            prepared = await self._enter(wish, checkpoint, call, live)
        log.info("prepared", claim=str(claim), channel=prepared.channel, domain=prepared.domain_uid)
        return _devices(prepared)

    async def unprepare(self, claim: ClaimId) -> None:
        checkpoint = await asyncio.to_thread(self._ledger.strike, claim.uid)
        self._situation.learn(unprepared=checkpoint.calls)
        log.info("unprepared", claim=str(claim))

    async def _boot_id(self, call: Call) -> str:
        """Known from the first look at the hardware on, and asked only for what outlived an earlier program."""
        while call.left():
            changed, known = self._situation.changed, self._situation.known
            if known.reading.boot_id:
                return known.reading.boot_id
            await first_of(changed, timeout=call.left())
        return ""

    @asynccontextmanager
    async def _looking_ahead(self, call: Call, checkpoint: Checkpoint) -> AsyncIterator[LivePartition]:
        """Where no channel is held, whatever is asked for is new: its record is needed for sure."""
        live, known = LivePartition(self._client, call), self._situation.known
        if not known.place or checkpoint.living(known.reading.boot_id):
            yield live
            return
        async with live.looking_ahead(known.place):
            yield live

    async def _enter(self, wish: Wish, began: Checkpoint, call: Call, live: LivePartition) -> PreparedClaim:
        """A grant that was recalled on its way is asked for anew; an unprepare since the call began is not."""
        checkpoint = began
        while True:
            grant = await self._grant(wish, checkpoint, call, live)
            prepared = self._expect_boot(_prepared(wish, grant, self._situation.known))
            try:
                await asyncio.to_thread(self._ledger.enter, prepared, checkpoint, grant.recall)
            except Recalled:
                latest = await asyncio.to_thread(self._ledger.read)
                checkpoint = structs.replace(latest, calls=began.calls)
                continue
            return prepared

    def _expect_boot(self, claim: PreparedClaim) -> PreparedClaim:
        """One without a boot id would never count as living, and its channel never as held."""
        if claim.channel >= 0 and not claim.boot_id:
            node, cause = self._situation.known.node, "it does not say since when it runs"
            raise NotYet(sentence(Reason.FABRIC_PENDING, node=node, cause=cause))
        return claim

    async def _read(self, call: Call) -> Wish:
        key = Key(call.claim.namespace, call.claim.name)
        try:
            claim = await call.ask(self._client.get(RESOURCE_CLAIMS, key))
        except NotFound as error:
            raise Rejected(sentence(Reason.NO_SUCH_CLAIM, claim=call.claim)) from error
        return read_wish(call.claim, claim, self._situation.known.node)

    async def _grant(self, wish: Wish, checkpoint: Checkpoint, call: Call, live: LivePartition) -> Grant:
        async with AsyncExitStack() as stack:
            return await self._wait_for_grant(wish, checkpoint, call, live, stack)

    async def _wait_for_grant(
        self, wish: Wish, checkpoint: Checkpoint, call: Call, live: LivePartition, stack: AsyncExitStack
    ) -> Grant:
        domain: ComputeDomain | None = None
        departure: Departure | None = None
        while True:
            changed, known = self._situation.changed, self._situation.known
            if domain is None and known.assignment(wish.domain_uid) is None:
                domain = await self._domain(wish, call)
                wish = wish._replace(domain=str(key_of(domain)))
                continue
            if known.reading.fabric.state is FabricState.NONE:
                return without_fabric(known, domain or await self._domain(wish, call))
            verdict = await _decide(known, wish, checkpoint, live)
            if isinstance(verdict, Grant):
                return verdict
            if verdict.hopeless:
                raise Rejected(verdict.words())
            if departure is None:
                name = domain.metadata.name if domain else _assigned_name(known, wish)
                watch = watching(self._client, wish, Key(wish.claim.namespace, name))
                departure = await stack.enter_async_context(watch)
            await first_of(changed, departure.seen, timeout=call.left())
            departure.check()
            if not changed.is_set():
                raise NotYet(verdict.words(call.taken()))

    async def _domain(self, wish: Wish, call: Call) -> ComputeDomain:
        """In its namespace, or, to tell the truth about why not, anywhere."""
        here = await call.ask(self._client.list(COMPUTE_DOMAINS, Selection(wish.claim.namespace)))
        if any(domain.metadata.uid == wish.domain_uid for domain in here):
            return expect_domain(wish, here)
        return expect_domain(wish, await call.ask(self._client.list(COMPUTE_DOMAINS)))


async def _decide(known: Knowledge, wish: Wish, checkpoint: Checkpoint, live: LivePartition) -> Grant | Obstacle:
    """What we watched may be old: a ComputeDomain that is new to this node is looked up live."""
    promised = checkpoint.promised(known.place)
    verdict = decide(known, wish, promised)
    if isinstance(verdict, Obstacle) or checkpoint.shares(_prepared(wish, verdict, known)):
        live.grow_old()
        return verdict
    verdict = decide(structs.replace(known, partition=await live.early()), wish, promised)
    if isinstance(verdict, Grant):
        return verdict
    return decide(structs.replace(known, partition=await live.now(known.place)), wish, promised)


def _assigned_name(known: Knowledge, wish: Wish) -> str:
    assignment = known.assignment(wish.domain_uid)
    return assignment.compute_domain.name if assignment else ""


def _prepared(wish: Wish, grant: Grant, known: Knowledge) -> PreparedClaim:
    return PreparedClaim(
        uid=wish.claim.uid,
        namespace=wish.claim.namespace,
        name=wish.claim.name,
        domain_uid=wish.domain_uid,
        domain_name=grant.domain_name,
        partition=grant.partition,
        channel=grant.channel,
        all=grant.all,
        devices=tuple((base_request(result), result.pool, result.device) for result in wish.results),
        boot_id=known.reading.boot_id,
        channel_count=known.reading.channel_count,
    )


def _devices(claim: PreparedClaim) -> tuple[PreparedDevice, ...]:
    return tuple(PreparedDevice(*device, (device_id(claim.uid),)) for device in claim.devices)
