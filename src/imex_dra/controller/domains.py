"""Brings one ComputeDomain up to date: finalizer, template, status; and lets it go when nobody needs it."""

from contextlib import suppress

from msgspec import structs

from imex_dra.api.computedomain import (
    ACCEPTED,
    COMPUTE_DOMAINS,
    DELETING,
    ComputeDomain,
    ComputeDomainStatus,
)
from imex_dra.api.meta import Condition, Key, is_deleting, key_of
from imex_dra.api.names import (
    ALL_CHANNELS_ALLOWED,
    ALL_CHANNELS_LABEL,
    DOMAIN_FINALIZER,
    RELEASE_ANNOTATION,
    RELEASE_NOW,
)
from imex_dra.api.nvlinkpartition import ChannelState
from imex_dra.api.reasons import Reason, sentence
from imex_dra.api.views import RESOURCE_CLAIM_TEMPLATES, ResourceClaim
from imex_dra.base.clock import Clock
from imex_dra.base.errors import AlreadyExists, NotFound
from imex_dra.controller.domainstatus import Obstacle, domain_status
from imex_dra.controller.observed import Observed, claim_nodes
from imex_dra.controller.templates import is_ours, template_for
from imex_dra.kube.client import Client
from imex_dra.kube.conditions import with_condition
from imex_dra.kube.events import EventRecorder
from imex_dra.kube.patch import patch_changes

_NAME_EVERY = 5.0


class Domains:
    def __init__(self, client: Client, observed: Observed, events: EventRecorder, clock: Clock) -> None:
        self._client = client
        self._observed = observed
        self._events = events
        self._clock = clock
        self._named_at: dict[str, float] = {}

    async def reconcile(self, key: Key) -> float | None:
        domain = self._observed.domains.get(key)
        if domain is None:
            return None
        if is_deleting(domain):
            return await self._let_go(domain)
        await self._serve(domain)
        return None

    async def _serve(self, domain: ComputeDomain) -> None:
        domain = await self._with_finalizer(domain)
        taken = await self._ensure_template(domain)
        refused = self._refusal(domain)
        obstacle = (
            (Reason.TEMPLATE_TAKEN, taken)
            if taken
            else (Reason.ALL_CHANNELS_REFUSED, refused)
            if refused
            else None
        )
        if obstacle:
            self._events.warn(COMPUTE_DOMAINS, domain, *obstacle)
        claims = self._observed.allocated_claims(domain)
        await self._write(domain, self._status(domain, claims, self._accepted(domain, refused), obstacle))

    async def _let_go(self, domain: ComputeDomain) -> float | None:
        if DOMAIN_FINALIZER not in domain.metadata.finalizers:
            return None
        await self._remove_template(domain)
        claims = self._observed.allocated_claims(domain)
        if claims and domain.metadata.annotations.get(RELEASE_ANNOTATION) != RELEASE_NOW:
            return await self._name_the_pods(domain, claims)
        if not self._holds_channel(domain):
            self._named_at.pop(domain.metadata.uid, None)
            kept = tuple(name for name in domain.metadata.finalizers if name != DOMAIN_FINALIZER)
            await self._patch_finalizers(domain, kept)
        return None

    async def _name_the_pods(self, domain: ComputeDomain, claims: list[ResourceClaim]) -> float | None:
        """At once, and then now and then: a job that ends pod by pod must not cost a write for each."""
        now, uid = self._clock.monotonic(), domain.metadata.uid
        remaining = self._named_at.get(uid, now - _NAME_EVERY) + _NAME_EVERY - now
        if remaining > 0:
            return remaining
        await self._write(domain, self._waiting(domain, claims))
        self._named_at[uid] = now
        return None

    async def _with_finalizer(self, domain: ComputeDomain) -> ComputeDomain:
        finalizers = domain.metadata.finalizers
        if DOMAIN_FINALIZER in finalizers:
            return domain
        return await self._patch_finalizers(domain, (*finalizers, DOMAIN_FINALIZER))

    async def _patch_finalizers(self, domain: ComputeDomain, finalizers: tuple[str, ...]) -> ComputeDomain:
        after = structs.replace(domain, metadata=structs.replace(domain.metadata, finalizers=finalizers))
        return await patch_changes(self._client, COMPUTE_DOMAINS, domain, after)

    async def _ensure_template(self, domain: ComputeDomain) -> str:
        """Empty, or why there can be none."""
        key = Key(domain.metadata.namespace, domain.template_name)
        template = self._observed.templates.get(key)
        if template is None:
            try:
                self._observed.templates.upsert(
                    await self._client.create(RESOURCE_CLAIM_TEMPLATES, template_for(domain))
                )
                return ""
            except AlreadyExists:
                template = await self._client.get(RESOURCE_CLAIM_TEMPLATES, key)
        if is_ours(template, domain):
            return ""
        return sentence(Reason.TEMPLATE_TAKEN, template=key, domain=key_of(domain))

    async def _remove_template(self, domain: ComputeDomain) -> None:
        template = self._observed.templates.get(Key(domain.metadata.namespace, domain.template_name))
        if template is None or not is_ours(template, domain):
            return
        with suppress(NotFound):
            await self._client.delete(RESOURCE_CLAIM_TEMPLATES, template)
        self._observed.templates.remove(template)

    def _refusal(self, domain: ComputeDomain) -> str:
        """Empty, or why it may not have what it asks for."""
        if not self._observed.is_refused(domain):
            return ""
        label = f"{ALL_CHANNELS_LABEL}={ALL_CHANNELS_ALLOWED}"
        return sentence(Reason.ALL_CHANNELS_REFUSED, domain=key_of(domain), label=label)

    def _accepted(self, domain: ComputeDomain, refusal: str) -> tuple[Condition, ...]:
        """Said only where it is refused, or was."""
        conditions = domain.status.conditions
        if not refusal and not any(condition.type == ACCEPTED for condition in conditions):
            return conditions
        return with_condition(
            conditions,
            ACCEPTED,
            status=not refusal,
            reason=Reason.ALL_CHANNELS_REFUSED if refusal else Reason.ACCEPTED,
            message=refusal or sentence(Reason.ACCEPTED),
            now=self._clock.now(),
        )

    def _status(
        self,
        domain: ComputeDomain,
        claims: list[ResourceClaim],
        conditions: tuple[Condition, ...],
        obstacle: Obstacle | None = None,
    ) -> ComputeDomainStatus:
        nodes = {node for claim in claims for node in claim_nodes(claim)}
        return domain_status(
            domain,
            sorted(nodes),
            cards={node: card for node in nodes if (card := self._observed.cards.get(Key("", node)))},
            partitions=sorted(self._observed.partitions.values(), key=lambda p: p.metadata.name),
            conditions=conditions,
            now=self._clock.now(),
            obstacle=obstacle,
        )

    def _waiting(self, domain: ComputeDomain, claims: list[ResourceClaim]) -> ComputeDomainStatus:
        pods = sorted({f"{claim.metadata.namespace}/{pod}" for claim in claims for pod in claim.pods})
        named = ", ".join(pods) if pods else "claims without a pod: " + ", ".join(str(key_of(c)) for c in claims)
        message = sentence(Reason.WAITING_FOR_PODS, pods=named, annotation=f"{RELEASE_ANNOTATION}={RELEASE_NOW}")
        conditions = with_condition(
            domain.status.conditions,
            DELETING,
            status=True,
            reason=Reason.WAITING_FOR_PODS,
            message=message,
            now=self._clock.now(),
        )
        return self._status(domain, claims, conditions)

    def _holds_channel(self, domain: ComputeDomain) -> bool:
        uid = domain.metadata.uid
        return any(
            entry.compute_domain.uid == uid and entry.state is ChannelState.ASSIGNED
            for partition in self._observed.partitions.by("holder", uid)
            for entry in partition.status.channels
        )

    async def _write(self, domain: ComputeDomain, status: ComputeDomainStatus) -> None:
        after = structs.replace(domain, status=status)
        self._observed.domains.upsert(
            await patch_changes(self._client, COMPUTE_DOMAINS, domain, after, subresource="status")
        )
