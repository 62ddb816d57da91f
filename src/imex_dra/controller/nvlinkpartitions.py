"""Reconciles one NVLinkPartition: plans its members and channels from NVLinkNodes and claims, and writes the
status.

The work queue gives one partition to one worker at a time, and only the leader works. A previous leader that has
not noticed that it lost the Lease may still write; the resourceVersion of every write makes one of the two fail
with a conflict and plan again, so that they cannot assign one channel twice. See docs/design/channel-reuse.md.
"""

from collections.abc import Iterable, Mapping, Set
from contextlib import suppress

import structlog
from msgspec import structs

from imex_dra.api import partitionreasons
from imex_dra.api.computedomain import COMPUTE_DOMAINS, AllocationMode, ComputeDomain
from imex_dra.api.meta import AnnotatedMeta, Key, is_deleting, key_of
from imex_dra.api.names import PARTITION_FINALIZER, PartitionId, name_format
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import (
    NVLINK_PARTITIONS,
    DomainReference,
    NVLinkPartition,
    NVLinkPartitionSpec,
    NVLinkPartitionStatus,
)
from imex_dra.api.reasons import Explanation
from imex_dra.base.clock import Clock
from imex_dra.base.errors import AlreadyExists, NotFound, Undecodable
from imex_dra.controller.caches import Caches, holders, is_node_ready, pods_of
from imex_dra.controller.channels import ChannelDemand
from imex_dra.controller.forgetting import without_returned_nodes
from imex_dra.controller.partitionplan import PartitionInputs, PartitionPlan, plan_partition
from imex_dra.controller.plausibility import Counters
from imex_dra.controller.recovery import may_recover
from imex_dra.controller.releases import ReleaseCheck
from imex_dra.controller.settings import DEFAULTS, Settings
from imex_dra.hardware.racks import index_count
from imex_dra.kube.client import Client
from imex_dra.kube.events import EventRecorder
from imex_dra.kube.patch import patch_changes

log = structlog.get_logger()


class NVLinkPartitionReconciler:
    def __init__(
        self,
        client: Client,
        caches: Caches,
        events: EventRecorder,
        clock: Clock,
        settings: Settings = DEFAULTS,
    ) -> None:
        self._client = client
        self._caches = caches
        self._events = events
        self._clock = clock
        self._settings = settings
        self.known: dict[PartitionId, Counters] = {}
        """The counters of each status as this leader last wrote or confirmed it. Only the leader increments them,
        so a report above them cannot be true, and a status below them was restored."""
        self._unconfirmed: dict[PartitionId, dict[str, None]] = {}
        """Of `ReleaseCheck`."""

    async def reconcile(self, name: PartitionId) -> float | None:
        before = self._caches.partitions.get(Key("", name)) or await self._create_if_needed(name)
        if before is None:
            return None
        before = await without_returned_nodes(self._client, self._caches, before)
        check = ReleaseCheck(self._client, self._caches, self._unconfirmed.setdefault(name, {}))
        inputs = await self.inputs(name, before, await check.released_domains(before))
        plan = plan_partition(inputs, self._clock.now())
        after = structs.replace(before, status=plan.status)
        # The plan is valid only for the status that it was made from: patch_changes writes with its
        # resourceVersion.
        written = await patch_changes(self._client, NVLINK_PARTITIONS, before, after, subresource="status")
        # The next reconcile must not plan from the cache as it was before this write.
        self._caches.partitions.upsert(written)
        self.known[name] = Counters.of(plan.status)
        self._report(inputs, plan)
        if self._is_unused(written):
            await self._delete(written)
        delays = [delay for delay in (plan.recheck_after, check.recheck_after) if delay is not None]
        return min(delays, default=None)

    async def _create_if_needed(self, name: PartitionId) -> NVLinkPartition | None:
        """A node in the partition needs it. A node elsewhere that still holds one of its channels does not."""
        members = [report.status for report in self._reports(name) if report.status.partition == name]
        if not members:
            return None
        product = next((status.product for status in members if status.product), "")
        listed = max((status.host_node_list.size for status in members if status.host_node_list), default=0)
        max_nodes = self._settings.max_nodes or index_count(product, reporting=len(members), listed=listed)
        partition = NVLinkPartition(
            AnnotatedMeta(name=name, finalizers=(PARTITION_FINALIZER,)),
            NVLinkPartitionSpec(max_nodes=max_nodes, name_format=name_format(name)),
        )
        try:
            return await self._client.create(NVLINK_PARTITIONS, partition)
        except AlreadyExists:
            return await self._client.get(NVLINK_PARTITIONS, Key("", name))

    async def inputs(
        self, name: PartitionId, partition: NVLinkPartition, released_domains: Set[str]
    ) -> PartitionInputs:
        caches, status = self._caches, partition.status
        members = {member.node for member in status.members}
        labeled = {node.metadata.name for node in caches.nodes.by("clique", name)}
        reporting = {report.metadata.name for report in self._reports(name)}
        names = members | labeled | reporting | set(status.pending_reports)
        nodes = {
            node: found
            for node in names - partition.forgotten_nodes
            if (found := caches.nodes.get(Key("", node))) is not None
        }
        nvlink_nodes = {n: report for n in nodes if (report := caches.nvlink_nodes.get(Key("", n))) is not None}
        return PartitionInputs(
            name=name,
            status=status,
            max_nodes=partition.spec.max_nodes,
            nvlink_nodes=nvlink_nodes,
            existing_nodes=nodes.keys(),
            not_ready_nodes={name for name, node in nodes.items() if not is_node_ready(node)},
            labeled_nodes=labeled,
            other_partitions={
                node: other for node in nodes for other in sorted(caches.memberships(node) - {name})
            },
            domains=await self._evidence(name, status, nvlink_nodes),
            demand={node: self._demand(node) for node in names},
            released_domains=released_domains,
            refused_domains=self._refused_domains(partition),
            pods=self._pods(nvlink_nodes.keys() - members),
            known=self.known.get(name),
            settings=self._settings,
            observed_generation=partition.metadata.generation,
            is_deleting=is_deleting(partition),
        )

    def _is_unused(self, partition: NVLinkPartition) -> bool:
        status = partition.status
        is_listed = status.members or status.channels or status.pending_reports
        return not is_listed and not self._reports(PartitionId(partition.metadata.name))

    def _reports(self, name: PartitionId) -> list[NVLinkNode]:
        """Of nodes in the partition, or with one of its channels. A report without a Node proves nothing: anybody
        who can write one can invent its name.
        """
        found = self._caches.nvlink_nodes.by("partition", name)
        return [report for report in found if self._caches.nodes.get(key_of(report)) is not None]

    async def _delete(self, partition: NVLinkPartition) -> None:
        """`known` is kept: if the partition is created again, its counters continue."""
        with suppress(NotFound):
            if not is_deleting(partition):
                await self._client.delete(NVLINK_PARTITIONS, partition)
                partition = await self._client.get(NVLINK_PARTITIONS, key_of(partition))
            others = tuple(name for name in partition.metadata.finalizers if name != PARTITION_FINALIZER)
            after = structs.replace(partition, metadata=structs.replace(partition.metadata, finalizers=others))
            await patch_changes(self._client, NVLINK_PARTITIONS, partition, after)
            log.info("partition deleted", partition=partition.metadata.name)

    async def _evidence(
        self, name: PartitionId, status: NVLinkPartitionStatus, nvlink_nodes: Mapping[str, NVLinkNode]
    ) -> tuple[ComputeDomain, ...]:
        """The ComputeDomains that may have a channel here, if the partition recovers: those that list one, and
        those to which the status or a node says that one belongs. The former are read live: if one was deleted and
        the cache does not show it yet, its channel may have been reused already.
        """
        if not may_recover(name, status, nvlink_nodes, self.known.get(name)):
            return ()
        domains = []
        listing = {domain.metadata.uid: domain for domain in self._caches.compute_domains.by("partition", name)}
        for domain in listing.values():
            try:
                live = await self._client.get(COMPUTE_DOMAINS, key_of(domain))
            except NotFound:
                continue
            except Undecodable:
                live = domain  # It exists.
            domains += [live] if live.metadata.uid == domain.metadata.uid else []
        named = {held.compute_domain for node in nvlink_nodes.values() for held in node.status.held_channels}
        named |= {entry.compute_domain.uid for entry in status.channels}
        domains += filter(None, (self._caches.compute_domain(uid) for uid in sorted(named - listing.keys())))
        return tuple(domains)

    def _demand(self, node: str) -> set[ChannelDemand]:
        """The ComputeDomains with a claim on the node that may have a channel."""
        demand = set()
        for claim in self._caches.claims.by("node", node):
            for uid in claim.domain_uids:
                domain = self._caches.compute_domain(uid)
                if domain is None or domain.metadata.namespace != claim.metadata.namespace:
                    continue
                if not is_deleting(domain) and not self._caches.is_refused(domain):
                    reference = DomainReference(domain.metadata.namespace, domain.metadata.name, uid)
                    demand.add(ChannelDemand(reference, domain.allocation_mode is AllocationMode.ALL))
        return demand

    def _refused_domains(self, partition: NVLinkPartition) -> set[str]:
        """Of those that have a channel here. `_demand` is without refused ones."""
        found = filter(None, map(self._caches.compute_domain, holders(partition)))
        return {domain.metadata.uid for domain in found if self._caches.is_refused(domain)}

    def _pods(self, nodes: Iterable[str]) -> dict[tuple[str, str], list[str]]:
        """The pods behind the channels that these nodes hold, by node and UID of the ComputeDomain."""
        pods = {}
        for node in nodes:
            nvlink_node = self._caches.nvlink_nodes.get(Key("", node))
            for held in nvlink_node.status.held_channels if nvlink_node else ():
                claims = self._caches.claims.by("domain", held.compute_domain)
                pods[node, held.compute_domain] = pods_of(claim for claim in claims if node in claim.nodes)
        return pods

    def _report(self, inputs: PartitionInputs, plan: PartitionPlan) -> None:
        """Logs and Events, only after the plan was written."""
        name, channels = inputs.name, plan.channels
        for entry in channels.assigned:
            log.info("channel assigned", partition=name, channel=entry.channel, domain=entry.compute_domain.name)
            domain = self._caches.compute_domain(entry.compute_domain.uid)
            if domain is not None:
                assigned = partitionreasons.channel_assigned(channel=entry.channel, partition=name)
                self._events.note(COMPUTE_DOMAINS, domain, assigned.reason, assigned.message())
        if plan.status.epoch != inputs.status.epoch:
            log.info("epoch incremented", partition=name, epoch=plan.status.epoch)
        if not plan.can_assign:
            return
        exhausted = partitionreasons.channels_exhausted(partition=name, count=plan.channel_count - 1)
        for reference in channels.unmet_demand:
            self._warn(reference, exhausted)
        for reference in channels.over_limit:
            limit = inputs.settings.max_channels_per_namespace
            self._warn(
                reference,
                partitionreasons.channel_limit(partition=name, namespace=reference.namespace, limit=limit),
            )

    def _warn(self, reference: DomainReference, problem: Explanation) -> None:
        domain = self._caches.compute_domain(reference.uid)
        if domain is not None:
            self._events.warn(COMPUTE_DOMAINS, domain, problem.reason, problem.message())
