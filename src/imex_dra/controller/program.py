"""`imex controller` as a process: who hears of what, and who works on it."""

import asyncio
import secrets
import socket

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.meta import Key, key_of
from imex_dra.api.names import CLIQUE_LABEL, LEASE, NAMESPACE, PartitionId
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import NVLinkPartition
from imex_dra.api.views import NODES, Namespace, Node, ResourceClaim, ResourceClaimTemplate
from imex_dra.base.clock import SystemClock
from imex_dra.controller.domains import Domains
from imex_dra.controller.observed import Observed, allows_all, claim_nodes, clique_of, domain_uids, partitions_of
from imex_dra.controller.partitions import Partitions
from imex_dra.kube.client import Client
from imex_dra.kube.controller import Controller
from imex_dra.kube.events import EventRecorder
from imex_dra.kube.lease import LeaderElection, Timing
from imex_dra.kube.patch import apply_fields
from imex_dra.kube.queue import WorkQueue

_GATHER = 0.6
"""Seconds in which what happens to a ComputeDomain's nodes is gathered into one status write.

Long enough that the write does not fall into the middle of a quick pod's start.
"""

_LABEL_REST = 10.0
"""Seconds until a clique label that somebody took away or changed is put back: a rival is not fought over it."""


async def run(client: Client, *, namespace: str = NAMESPACE, timing: Timing | None = None) -> None:
    identity = f"{socket.gethostname()}_{secrets.token_hex(4)}"
    election = LeaderElection(client, Key(namespace, LEASE), identity, SystemClock(), timing)
    await election.lead(lambda: Program(client, identity).run())


class Program:
    def __init__(self, client: Client, identity: str) -> None:
        self._client = client
        self._observed = Observed()
        self._partitions: WorkQueue[PartitionId] = WorkQueue()
        self._domains: WorkQueue[Key] = WorkQueue()
        self._nodes: WorkQueue[Key] = WorkQueue()
        self._events = EventRecorder(client, identity, SystemClock())

    async def run(self) -> None:
        clock = SystemClock()
        partitions = Partitions(self._client, self._observed, self._events, clock)
        domains = Domains(self._client, self._observed, self._events, clock)
        self._subscribe()
        reflectors = self._observed.reflectors(self._client)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run())
            for reflector in reflectors:
                group.create_task(reflector.run())
            for reflector in reflectors:
                await reflector.synced.wait()
            group.create_task(Controller("partitions", self._partitions, partitions.reconcile, workers=4).run())
            group.create_task(Controller("domains", self._domains, domains.reconcile, workers=4).run())
            group.create_task(Controller("nodes", self._nodes, self._label).run())

    def _subscribe(self) -> None:
        self._observed.domains.subscribe(self._domain_changed)
        self._observed.claims.subscribe(self._claim_changed)
        self._observed.templates.subscribe(self._template_changed)
        self._observed.partitions.subscribe(self._partition_changed)
        self._observed.cards.subscribe(self._card_changed)
        self._observed.nodes.subscribe(self._node_changed)
        self._observed.namespaces.subscribe(self._namespace_changed)

    def _domain_changed(self, old: ComputeDomain | None, new: ComputeDomain | None) -> None:
        for domain in filter(None, (old, new)):
            self._domains.add(key_of(domain))
            for partition in self._observed.partitions.by("holder", domain.metadata.uid):
                self._partitions.add(PartitionId(partition.metadata.name))
            for claim in self._observed.claims.by("domain", domain.metadata.uid):
                self._touch_partitions(claim)

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        for claim in filter(None, (old, new)):
            self._touch_partitions(claim)
            for uid in domain_uids(claim):
                self._touch_domain(uid)

    def _touch_partitions(self, claim: ResourceClaim) -> None:
        for node in claim_nodes(claim):
            for partition in self._observed.partitions_of_node(node):
                self._partitions.add(PartitionId(partition))

    def _touch_domain(self, uid: str) -> None:
        domain = self._observed.domain(uid)
        if domain is None:
            return
        self._domains.add_after(key_of(domain), _GATHER)
        for partition in self._observed.partitions.by("holder", uid):
            self._partitions.add(PartitionId(partition.metadata.name))

    def _template_changed(self, old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None) -> None:
        """Gone: ours is made again, and the place of somebody else's is free."""
        if old is not None and new is None:
            for domain in self._observed.domains.by("template", key_of(old)):
                self._domains.add(key_of(domain))

    def _partition_changed(self, old: NVLinkPartition | None, new: NVLinkPartition | None) -> None:
        for partition in filter(None, (old, new)):
            self._partitions.add(PartitionId(partition.metadata.name))
            for entry in partition.status.channels:
                domain = self._observed.domain(entry.compute_domain.uid)
                if domain is not None:
                    self._domains.add_after(key_of(domain), _GATHER)

    def _card_changed(self, old: NVLinkNode | None, new: NVLinkNode | None) -> None:
        for card in filter(None, (old, new)):
            name = card.metadata.name
            self._nodes.add(Key("", name))
            for partition in self._observed.partitions_of_node(name) | partitions_of(card):
                self._partitions.add(PartitionId(partition))
            for claim in self._observed.claims.by("node", name):
                for uid in domain_uids(claim):
                    self._touch_domain(uid)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        subject = new or old
        if subject is None:
            return
        if old is not None and new is not None:
            if clique_of(old) != clique_of(new):
                self._nodes.add_after(key_of(new), _LABEL_REST)
            return
        self._nodes.add(key_of(subject))
        for partition in self._observed.partitions_of_node(subject.metadata.name):
            self._partitions.add(PartitionId(partition))

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        """One that is seen after its ComputeDomains may allow what was refused without it."""
        if new is None or allows_all(old) == allows_all(new):
            return
        for domain in self._observed.domains.values():
            if domain.metadata.namespace == new.metadata.name:
                self._domain_changed(None, domain)

    async def _label(self, key: Key) -> None:
        """The clique label, which workloads use as a topology key, from what the node's card says."""
        node, card = self._observed.nodes.get(key), self._observed.cards.get(key)
        if node is not None and card is not None and card.status.partition:
            labels = {"metadata": {"labels": {CLIQUE_LABEL: card.status.partition}}}
            await apply_fields(self._client, NODES, node, labels)
