"""Reconciles one ComputeDomain: finalizer, ResourceClaimTemplate and status; and its deletion.

The finalizer stays until no channel is assigned to the ComputeDomain, so that a channel is never assigned to an
object that no longer exists. When a status is written, and which Events it leads to: docs/design/status.md.
"""

from contextlib import suppress

import structlog
from msgspec import structs

from imex_dra.api import domainreasons
from imex_dra.api.computedomain import COMPUTE_DOMAINS, READY, ComputeDomain, ComputeDomainStatus
from imex_dra.api.meta import Key, is_deleting, key_of
from imex_dra.api.names import DOMAIN_FINALIZER, READINESS_ANNOTATION, READINESS_MEMBERS
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.reasons import Explanation
from imex_dra.api.views import RESOURCE_CLAIM_TEMPLATES
from imex_dra.base.clock import Clock
from imex_dra.base.errors import AlreadyExists, NamespaceTerminating, NotFound
from imex_dra.controller.caches import Caches, pods_of, release_requested
from imex_dra.controller.capacity import Capacity
from imex_dra.controller.domainconditions import DomainInputs
from imex_dra.controller.domainevents import announcements, readiness_changed
from imex_dra.controller.domainstatus import domain_status, is_starting
from imex_dra.controller.settings import DEFAULTS, Settings
from imex_dra.controller.templates import is_orphan, is_owned, template_for, template_problem
from imex_dra.controller.waitingclaims import CandidateNode, obstacles_on, waiting_claims
from imex_dra.kube.client import Client
from imex_dra.kube.conditions import find_condition
from imex_dra.kube.events import EventRecorder
from imex_dra.kube.patch import patch_changes

log = structlog.get_logger()

_REPORT_PERIOD = 5.0
"""Seconds between two reports of the pods that block a deletion: a job that ends pod by pod must not cost a
write for each pod."""

_WAITING_PERIOD = 30.0
"""Seconds after which it is said again why claims wait for a node: that depends on all nodes and on the claims of
other ComputeDomains, whose changes do not trigger this one."""

_START_PERIOD = 3.0
"""Seconds in which a ComputeDomain whose pods start may become Ready with a single status write."""


class ComputeDomainReconciler:
    def __init__(
        self,
        client: Client,
        caches: Caches,
        events: EventRecorder,
        clock: Clock,
        settings: Settings = DEFAULTS,
        *,
        start_period: float = _START_PERIOD,
    ) -> None:
        self._client = client
        self._caches = caches
        self._events = events
        self._clock = clock
        self._settings = settings
        self._start_period = start_period
        self._capacity = Capacity(caches)
        self._starting_since: dict[Key, float] = {}
        """Since when a status is held back because pods are starting."""
        self._reported_at: dict[Key, float] = {}
        """When the blocking pods were last reported."""

    async def reconcile(self, key: Key) -> float | None:
        domain = self._caches.compute_domains.get(key)
        if domain is None:
            self._forget(key)
            return None
        try:
            return await (self._finalize(domain) if is_deleting(domain) else self._serve(domain))
        except (NotFound, NamespaceTerminating) as error:
            # It was deleted meanwhile, or will be together with its namespace: a watch event follows.
            log.debug("the ComputeDomain is going away", domain=str(key), error=str(error))
            return None

    async def _serve(self, domain: ComputeDomain) -> float | None:
        domain = await self._ensure_finalizer(domain)
        problem = await self._ensure_template(domain)
        inputs = self._inputs(domain, template_problem=problem)
        status = domain_status(inputs, self._clock.now())
        delay = self._start_delay(domain, status)
        if delay > 0:
            return delay
        await self._write_status(domain, status)
        return _WAITING_PERIOD if inputs.waiting is not None else None

    def _start_delay(self, domain: ComputeDomain, status: ComputeDomainStatus) -> float:
        """Seconds for which to hold this status back. A burst of pods is scheduled and prepared within seconds on
        many nodes; reporting every step would cost a write each, and say nothing that lasts.
        """
        key, before = key_of(domain), find_condition(domain.status.conditions, READY)
        # Never hold back that a ComputeDomain is no longer Ready, nor the first status, nor the list of nodes if
        # prepares wait for it.
        awaited = domain.metadata.annotations.get(READINESS_ANNOTATION) == READINESS_MEMBERS
        if before is None or before.status == "True" or awaited or not is_starting(status):
            self._starting_since.pop(key, None)
            return 0.0
        now = self._clock.monotonic()
        return self._starting_since.setdefault(key, now) + self._start_period - now

    async def _finalize(self, domain: ComputeDomain) -> float | None:
        others = [name for name in domain.metadata.finalizers if name != DOMAIN_FINALIZER]
        if DOMAIN_FINALIZER not in domain.metadata.finalizers:
            if others:
                await self._report_deletion(domain, domainreasons.foreign_finalizers(finalizers=others))
            return None
        # The template goes first, so that no new pod gets a claim while the deletion waits.
        await self._remove_template(domain)
        if self._caches.allocated_claims(domain) and not release_requested(domain):
            return await self._report_blocking_pods(domain)
        # The NVLinkPartition reconciler releases the channel and thereby triggers this reconciler again.
        if not self._caches.partitions.by("holder", domain.metadata.uid):
            await self._patch_finalizers(domain, tuple(others))
        return None

    async def _report_blocking_pods(self, domain: ComputeDomain) -> float | None:
        now, key = self._clock.monotonic(), key_of(domain)
        delay = self._reported_at.get(key, now - _REPORT_PERIOD) + _REPORT_PERIOD - now
        if delay > 0:
            return delay
        claims = self._caches.allocated_claims(domain)
        blocking = pods_of(claims) or [f"claim {key_of(claim)} without a pod" for claim in claims]
        await self._report_deletion(domain, domainreasons.waiting_for_pods(pods=blocking))
        self._reported_at[key] = now
        return None

    async def _report_deletion(self, domain: ComputeDomain, waits_for: Explanation) -> None:
        status = domain_status(self._inputs(domain, deletion=waits_for), self._clock.now())
        await self._write_status(domain, status)

    async def _ensure_finalizer(self, domain: ComputeDomain) -> ComputeDomain:
        finalizers = domain.metadata.finalizers
        if DOMAIN_FINALIZER in finalizers:
            return domain
        return await self._patch_finalizers(domain, (*finalizers, DOMAIN_FINALIZER))

    async def _patch_finalizers(self, domain: ComputeDomain, finalizers: tuple[str, ...]) -> ComputeDomain:
        after = structs.replace(domain, metadata=structs.replace(domain.metadata, finalizers=finalizers))
        return await patch_changes(self._client, COMPUTE_DOMAINS, domain, after)

    async def _ensure_template(self, domain: ComputeDomain) -> Explanation | None:
        """Returns what is wrong with the template."""
        key = Key(domain.metadata.namespace, domain.template_name)
        template = self._caches.templates.get(key)
        if template is None:
            try:
                template = await self._client.create(RESOURCE_CLAIM_TEMPLATES, template_for(domain))
                self._caches.templates.upsert(template)
            except AlreadyExists:
                template = await self._client.get(RESOURCE_CLAIM_TEMPLATES, key)
        return template_problem(template, domain)

    async def _remove_template(self, domain: ComputeDomain) -> None:
        template = self._caches.templates.get(Key(domain.metadata.namespace, domain.template_name))
        if template is None or not (is_owned(template, domain) or is_orphan(template, domain)):
            return
        with suppress(NotFound):
            await self._client.delete(RESOURCE_CLAIM_TEMPLATES, template)
        self._caches.templates.remove(template)

    def _inputs(
        self,
        domain: ComputeDomain,
        *,
        template_problem: Explanation | None = None,
        deletion: Explanation | None = None,
    ) -> DomainInputs:
        caches, claims = self._caches, self._caches.allocated_claims(domain)
        nodes = {node for claim in claims for node in claim.nodes}
        partitions = caches.partitions_of_domain(domain, nodes)
        nodes |= {member.node for partition in partitions for member in partition.status.members}
        found = {node: caches.nvlink_nodes.get(Key("", node)) for node in nodes}
        reports = {node: report for node, report in found.items() if report is not None}
        refused = caches.is_refused(domain)
        return DomainInputs(
            domain,
            claims,
            partitions,
            reports,
            waiting=self._waiting_claims(domain, list(reports.values())),
            template_problem=template_problem,
            refusal=domainreasons.all_channels_refused(domain=str(key_of(domain))) if refused else None,
            deletion=deletion,
            max_channels_per_namespace=self._settings.max_channels_per_namespace,
        )

    def _waiting_claims(self, domain: ComputeDomain, reports: list[NVLinkNode]) -> Explanation | None:
        waiting = self._caches.waiting_claims(domain)
        if not waiting:
            return None
        nearby = [CandidateNode(node, self._caches.devices_in_use(node.metadata.name)) for node in reports]
        obstacles = obstacles_on(nearby) if nearby else self._capacity.obstacles()
        return waiting_claims(waiting, obstacles, has_pods=bool(nearby))

    async def _write_status(self, domain: ComputeDomain, status: ComputeDomainStatus) -> None:
        after = structs.replace(domain, status=status)
        self._caches.compute_domains.upsert(
            await patch_changes(self._client, COMPUTE_DOMAINS, domain, after, subresource="status")
        )
        self._starting_since.pop(key_of(domain), None)
        self._announce(domain, status)

    def _announce(self, domain: ComputeDomain, status: ComputeDomainStatus) -> None:
        """Only after the status was written: a write that fails is repeated."""
        for announcement in announcements(domain.status, status):
            record = self._events.warn if announcement.warning else self._events.note
            record(COMPUTE_DOMAINS, domain, announcement.reason, announcement.message)
        ready = readiness_changed(domain.status, status)
        if ready is not None:
            event = "ComputeDomain is Ready" if ready.status == "True" else "ComputeDomain is not Ready"
            log.info(event, domain=str(key_of(domain)), reason=ready.reason, cause=ready.message)

    def _forget(self, key: Key) -> None:
        self._starting_since.pop(key, None)
        self._reported_at.pop(key, None)
