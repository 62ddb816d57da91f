"""The `imex controller` process: leader election, watches, work queues, and which change triggers which
reconcile."""

import asyncio
import secrets
import socket
from collections.abc import Iterable
from functools import partial
from typing import Any

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.meta import Key, is_deleting, key_of
from imex_dra.api.metrics import (
    CLAIM_QUEUE,
    CLAIM_RECONCILES,
    DOMAIN_QUEUE,
    DOMAIN_RECONCILES,
    LABEL_QUEUE,
    LABEL_RECONCILES,
    LEADER,
    PARTITION_QUEUE,
    PARTITION_RECONCILES,
)
from imex_dra.api.names import LEASE, PartitionId
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import NVLinkPartition
from imex_dra.api.views import Namespace, Node, ResourceClaim, ResourceClaimTemplate
from imex_dra.base.clock import Clock
from imex_dra.base.metrics import Metric
from imex_dra.base.telemetry import Telemetry
from imex_dra.controller.caches import (
    Caches,
    allows_all_channels,
    clique_label,
    holders,
    is_node_ready,
    reported_partitions,
    staying_nodes,
)
from imex_dra.controller.certificates import DAEMONS, CertificateKeeper, webhook_leaf
from imex_dra.controller.changes import (
    concerns_domains,
    concerns_partition,
    concerns_partitions,
    concerns_waiting_domains,
    listed_differently,
    partition_change,
    reached_differently,
)
from imex_dra.controller.cliquelabels import CliqueLabelReconciler
from imex_dra.controller.computedomains import ComputeDomainReconciler
from imex_dra.controller.lateclaims import DELAY, LateClaimReporter, became_allocated
from imex_dra.controller.nvlinkpartitions import NVLinkPartitionReconciler
from imex_dra.controller.otherdriver import OtherDriverGuard
from imex_dra.controller.settings import DEFAULTS, Settings
from imex_dra.controller.telemetry import controller_samples
from imex_dra.kube.account import own_account
from imex_dra.kube.client import Client
from imex_dra.kube.controller import Controller
from imex_dra.kube.events import EventRecorder
from imex_dra.kube.lease import LeaderElection
from imex_dra.kube.queue import WorkQueue
from imex_dra.kube.reflector import Reflector

_STATUS_DELAY = 0.6
"""Seconds in which changes of a ComputeDomain's nodes are gathered into one status write. Long enough that the
write does not compete with the start of a pod that starts quickly."""

WORKERS = 8
"""Of each kind. They wait for the API server most of the time: with few of them, an answer that takes 50 ms would
limit the changes per second, and the status would fall behind. Each costs a TLS connection's memory."""

_RELABEL_DELAY = 10.0
"""Seconds until a clique label that was removed or changed is restored, so that two writers do not overwrite
each other in a tight loop."""


async def run(
    client: Client, *, namespace: str, settings: Settings = DEFAULTS, telemetry: Telemetry | None = None
) -> None:
    """Waits for the Lease, then reconciles until the Lease is lost or another driver of the same name appears."""
    identity = f"{socket.gethostname()}_{secrets.token_hex(4)}"
    owners = partial(own_account, client, namespace)
    election = LeaderElection(client, Key(namespace, LEASE), identity, Clock(), owners=owners)
    guard = OtherDriverGuard(client, identity, namespace, Clock())
    wanted = ((DAEMONS, settings.daemon_certificates), (webhook_leaf(namespace), settings.webhook_certificates))
    leaves = [leaf for leaf, is_wanted in wanted if is_wanted]
    certificates = CertificateKeeper(client, namespace, Clock(), leaves) if leaves else None
    telemetry = telemetry or Telemetry()
    leader = Leader(client, identity, settings=settings, certificates=certificates, telemetry=telemetry)

    async def lease_problem() -> str:
        return election.problem

    async def work() -> None:
        telemetry.metrics.set(LEADER, 1)
        try:
            await guard.run(leader.run)
        finally:
            telemetry.metrics.set(LEADER, 0)

    telemetry.metrics.set(LEADER, 0)
    with telemetry.ready("lease", lease_problem):
        await election.lead(work)


class Leader:
    """The controllers that run while this process holds the Lease."""

    def __init__(
        self,
        client: Client,
        identity: str,
        clock: Clock | None = None,
        *,
        relabel_delay: float = _RELABEL_DELAY,
        settings: Settings = DEFAULTS,
        late_claim_delay: float = DELAY,
        certificates: CertificateKeeper | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._client = client
        self._clock = clock or Clock()
        self._settings = settings
        self._relabel_delay = relabel_delay
        self._late_claim_delay = late_claim_delay
        self._certificates = certificates
        self._telemetry = telemetry or Telemetry()
        self._reflectors: list[Reflector[Any]] = []
        self._caches = Caches()
        self._partitions: WorkQueue[PartitionId] = WorkQueue()
        self._compute_domains: WorkQueue[Key] = WorkQueue(group=lambda key: key.namespace)
        self._nodes: WorkQueue[Key] = WorkQueue()
        self._claims: WorkQueue[Key] = WorkQueue()
        self._events = EventRecorder(client, identity, self._clock)

    async def run(self) -> None:
        self._subscribe()
        queues: dict[Metric, WorkQueue[Any]] = {
            PARTITION_QUEUE: self._partitions,
            DOMAIN_QUEUE: self._compute_domains,
            LABEL_QUEUE: self._nodes,
            CLAIM_QUEUE: self._claims,
        }
        samples = partial(controller_samples, self._caches, queues)
        with self._telemetry.metrics.source(samples), self._telemetry.ready("caches", self._caches_problem):
            async with asyncio.TaskGroup() as group:
                await self._start(group)

    async def _start(self, group: asyncio.TaskGroup) -> None:
        client, caches, events, clock = self._client, self._caches, self._events, self._clock
        partitions = NVLinkPartitionReconciler(client, caches, events, clock, self._settings)
        domains = ComputeDomainReconciler(client, caches, events, clock, self._settings)
        labels = CliqueLabelReconciler(client, caches, events, clock)
        late_claims = LateClaimReporter(caches, events)
        reflectors = self._reflectors = self._caches.reflectors(self._client)
        group.create_task(self._events.run())
        if self._certificates is not None:
            group.create_task(self._certificates.run())
        for reflector in reflectors:
            group.create_task(reflector.run())
        # A cache that is not synced lacks objects that exist: a plan from it would drop members and demand.
        for reflector in reflectors:
            await reflector.synced.wait()
        observe = self._telemetry.metrics.observe
        for controller in (
            Controller(
                "partitions",
                self._partitions,
                partitions.reconcile,
                workers=WORKERS,
                measure=partial(observe, PARTITION_RECONCILES),
            ),
            Controller(
                "domains",
                self._compute_domains,
                domains.reconcile,
                workers=WORKERS,
                measure=partial(observe, DOMAIN_RECONCILES),
            ),
            Controller("nodes", self._nodes, labels.reconcile, measure=partial(observe, LABEL_RECONCILES)),
            Controller("claims", self._claims, late_claims.reconcile, measure=partial(observe, CLAIM_RECONCILES)),
        ):
            group.create_task(controller.run())

    async def _caches_problem(self) -> str:
        waiting = [reflector for reflector in self._reflectors if not reflector.synced.is_set()]
        if not waiting:
            return ""
        cause = next((f": {reflector.error}" for reflector in waiting if reflector.error), "")
        return f"{len(waiting)} kinds of objects are not listed yet{cause}"

    def _subscribe(self) -> None:
        self._caches.compute_domains.subscribe(self._compute_domain_changed)
        self._caches.claims.subscribe(self._claim_changed)
        self._caches.templates.subscribe(self._template_changed)
        self._caches.partitions.subscribe(self._partition_changed)
        self._caches.nvlink_nodes.subscribe(self._nvlink_node_changed)
        self._caches.nodes.subscribe(self._node_changed)
        self._caches.namespaces.subscribe(self._namespace_changed)

    def _compute_domain_changed(self, old: ComputeDomain | None, new: ComputeDomain | None) -> None:
        for name in listed_differently(old, new):
            self._partitions.add(PartitionId(name))
        for domain in filter(None, (old, new)):
            self._compute_domains.add(key_of(domain))
            if concerns_partitions(old, new):
                self._enqueue_partitions_of_domain(domain)
                for claim in self._caches.claims.by("domain", domain.metadata.uid):
                    self._enqueue_partitions(claim)

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        for claim in filter(None, (old, new)):
            self._enqueue_partitions(claim)
            for uid in claim.domain_uids | claim.waits_for_domain_uids:
                self._enqueue_compute_domain(uid)
                # Its deletion may have waited for this claim.
                domain = self._caches.compute_domain(uid)
                if domain is not None and is_deleting(domain):
                    self._enqueue_partitions_of_domain(domain)
        if new is not None and became_allocated(old, new):
            self._claims.add_after(key_of(new), self._late_claim_delay)

    def _enqueue_partitions(self, claim: ResourceClaim) -> None:
        for node in claim.nodes:
            self._enqueue_partitions_of_node(node)

    def _enqueue_partitions_of_domain(self, domain: ComputeDomain) -> None:
        for partition in self._caches.partitions.by("holder", domain.metadata.uid):
            self._partitions.add(PartitionId(partition.metadata.name))

    def _enqueue_compute_domain(self, uid: str) -> None:
        domain = self._caches.compute_domain(uid)
        if domain is not None:
            self._compute_domains.add_after(key_of(domain), _STATUS_DELAY)

    def _enqueue_compute_domains_on(self, nodes: Iterable[str]) -> None:
        for uid in self._caches.domains_on(nodes):
            self._enqueue_compute_domain(uid)

    def _enqueue_waiting_domains(self, partition: NVLinkPartition, members: Iterable[str]) -> None:
        """A ComputeDomain that waits for a channel here reports why it has none."""
        for uid in self._caches.domains_on(members) - holders(partition):
            self._enqueue_compute_domain(uid)

    def _template_changed(self, old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None) -> None:
        """After a deletion, the reconciler creates its template again, or one whose name was taken until now.
        After a change, the template may have lost its owner reference.
        """
        if old is not None:
            for domain in self._caches.compute_domains.by("template", key_of(old)):
                self._compute_domains.add(key_of(domain))

    def _partition_changed(self, old: NVLinkPartition | None, new: NVLinkPartition | None) -> None:
        found = [partition for partition in (old, new) if partition is not None]
        members = {member.node for partition in found for member in partition.status.members}
        for partition in found:
            self._partitions.add(PartitionId(partition.metadata.name))
        if old is None or new is None:
            self._enqueue_compute_domains_on(members)
            uids = {uid for partition in found for uid in holders(partition)}
        else:
            change = partition_change(old, new, any_unreachable=self._caches.any_unreachable(members))
            self._enqueue_compute_domains_on(change.nodes)
            uids = set(change.domains)
            if change.without_channel:
                self._enqueue_waiting_domains(new, members)
        for uid in uids:
            self._enqueue_compute_domain(uid)
        # A node that has left this partition may join another one, which waits for that.
        for node in staying_nodes(old) ^ staying_nodes(new):
            self._enqueue_partitions_of_node(node)

    def _nvlink_node_changed(self, old: NVLinkNode | None, new: NVLinkNode | None) -> None:
        for report in filter(None, (old, new)):
            name = report.metadata.name
            if old is None or new is None or old.status.partition != new.status.partition:
                self._nodes.add(Key("", name))
            if concerns_partition(old, new):
                for partition in self._caches.partitions_of_node(name) | reported_partitions(report):
                    self._partitions.add(PartitionId(partition))
            cut = reached_differently(old, new)
            if cut or concerns_domains(old, new):
                self._enqueue_compute_domains_on({name, *cut})
        if concerns_waiting_domains(old, new) and (found := new or old) is not None:
            for listing in self._caches.partitions.by("node", found.metadata.name):
                self._enqueue_waiting_domains(listing, staying_nodes(listing))

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is None:
            return
        if old is not None and new is not None:
            if clique_label(old) != clique_label(new):
                self._nodes.add_after(key_of(new), self._relabel_delay)
            # A Node is written with every heartbeat; only a change of its readiness matters.
            if is_node_ready(old) != is_node_ready(new):
                self._enqueue_partitions_of_node(new.metadata.name)
            return
        self._nodes.add(key_of(node))
        self._enqueue_partitions_of_node(node.metadata.name)

    def _enqueue_partitions_of_node(self, node: str) -> None:
        for partition in self._caches.partitions_of_node(node):
            self._partitions.add(PartitionId(partition))

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        # Watches are not ordered across kinds: a ComputeDomain may be seen before its namespace, and is refused
        # then.
        if new is None or allows_all_channels(old) == allows_all_channels(new):
            return
        for domain in self._caches.compute_domains.by("namespace", new.metadata.name):
            self._compute_domain_changed(None, domain)
