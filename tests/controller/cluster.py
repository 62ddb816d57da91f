"""Objects on a real API server, and reconcilers whose caches tests fill on demand."""

import asyncio
import uuid
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import AnnotatedMeta, Key, ObjectMeta, OwnerReference, key_of
from imex_dra.api.names import CHANNEL_CLASS, PartitionId
from imex_dra.api.nvlinknode import NVLINK_NODES, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, MemberState, NVLinkPartition
from imex_dra.api.views import (
    EVENTS,
    NAMESPACES,
    NODES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    ClaimDevices,
    ClaimSpec,
    DeviceRequest,
    ExactRequest,
    Namespace,
    Node,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
)
from imex_dra.base.clock import Clock
from imex_dra.base.errors import NotFound
from imex_dra.controller.caches import Caches
from imex_dra.controller.computedomains import ComputeDomainReconciler
from imex_dra.controller.nvlinkpartitions import NVLinkPartitionReconciler
from imex_dra.controller.settings import DEFAULTS, Settings
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.events import EventRecorder
from tests.controller.claims import claim as allocated
from tests.controller.claims import configuration
from tests.controller.claims import domain as domain_object
from tests.controller.partition import nvlink_node


class Reconcilers:
    """The reconcilers of one controller, and its caches."""

    def __init__(self, client: Client, settings: Settings = DEFAULTS) -> None:
        self.client, self.caches = client, Caches()
        self.events = EventRecorder(client, "test", Clock())
        self.partitions = NVLinkPartitionReconciler(client, self.caches, self.events, Clock(), settings)
        # What is held back depends on time; tests that are about it say so.
        self.domains = ComputeDomainReconciler(client, self.caches, self.events, Clock(), start_period=0.0)

    async def sync(self) -> None:
        """Fills the caches, as if all watches had caught up."""
        caches = self.caches
        caches.compute_domains.replace(await self.client.list(COMPUTE_DOMAINS))
        caches.claims.replace(await self.client.list(RESOURCE_CLAIMS))
        caches.templates.replace(await self.client.list(RESOURCE_CLAIM_TEMPLATES))
        caches.partitions.replace(await self.client.list(NVLINK_PARTITIONS))
        caches.nvlink_nodes.replace(await self.client.list(NVLINK_NODES))
        caches.nodes.replace(await self.client.list(NODES))
        caches.namespaces.replace(await self.client.list(NAMESPACES))


class Cluster:
    """A namespace, a partition and nodes that no other test uses."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.tag = uuid.uuid4().hex[:8]
        self.namespace = f"test-{self.tag}"
        self.partition = PartitionId(f"{uuid.uuid4()}.1")
        self._reports: dict[str, dict[str, Any]] = {}
        """The arguments of `report`, by node."""

    async def set_up(self) -> "Cluster":
        await self.client.create(NAMESPACES, Namespace(ObjectMeta(name=self.namespace)))
        return self

    async def reconcilers(self, settings: Settings = DEFAULTS) -> Reconcilers:
        reconcilers = Reconcilers(self.client, settings)
        await reconcilers.sync()
        return reconcilers

    async def settle(self, reconcilers: Reconcilers, *domains: ComputeDomain) -> None:
        """Reconciles the partition and lets the nodes acknowledge, twice; then reconciles the ComputeDomains."""
        for _ in range(2):
            await reconcilers.sync()
            await reconcilers.partitions.reconcile(self.partition)
            await self.acknowledge()
        for domain in domains:
            await reconcilers.sync()
            await reconcilers.domains.reconcile(key_of(domain))

    async def create_node(self, name: str, **report: Any) -> str:
        """A Node with its NVLinkNode. Returns the unique name."""
        unique = f"{name}-{self.tag}"
        # With a label, as every real node: the API server records the owners of fields only if there are fields.
        labels = {"kubernetes.io/hostname": unique}
        await self.client.create(NODES, Node(ObjectMeta(name=unique, labels=labels)))
        await self.client.create(NVLINK_NODES, NVLinkNode(ObjectMeta(name=unique)))
        await self.report(unique, **report)
        return unique

    async def report(self, node: str, **report: Any) -> None:
        """Writes the status of the node's NVLinkNode."""
        self._reports[node] = {"partition": self.partition, "address": "10.0.0.1", **report}
        status = nvlink_node(node, **self._reports[node]).status
        absent = dict.fromkeys(("heldChannels", "unreachable", "preparedClaims"))
        patch = {"status": {**absent, **msgspec.to_builtins(status)}}
        await self.client.patch(NVLINK_NODES, Key("", node), patch, subresource="status")

    async def report_again(self, node: str, **report: Any) -> None:
        """Creates the NVLinkNode that was deleted."""
        await self.client.create(NVLINK_NODES, NVLinkNode(ObjectMeta(name=node)))
        await self.report(node, **report)

    async def set_node_ready(self, node: str, ready: bool) -> None:
        conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
        patch = {"status": {"conditions": conditions}}
        await self.client.patch(NODES, Key("", node), patch, subresource="status")

    async def acknowledge(self) -> None:
        """Every node acknowledges the epoch of its partition, and every member applies the member list."""
        for node, report in self._reports.items():
            with suppress(NotFound):
                status = (await self.client.get(NVLINK_PARTITIONS, Key("", report["partition"]))).status
                is_member = node in {member.node for member in status.members}
                applied = max(report.get("applied", 0), status.generation if is_member else 0)
                await self.report(node, **{**report, "acknowledged": status.epoch, "applied": applied})

    async def run_daemons(self) -> bool:
        """The daemon of every member becomes READY with its index. Returns whether all nodes are Ready members."""
        await self.acknowledge()
        try:
            members = {member.node: member for member in (await self.live_partition()).status.members}
        except NotFound:
            return False
        for node in self._reports.keys() & members.keys():
            report = {"state": ImexState.READY, "index": members[node].index}
            await self.report(node, **{**self._reports[node], **report})
        states = {node: member.state for node, member in members.items()}
        return states == dict.fromkeys(self._reports, MemberState.READY)

    async def create_domain(self, name: str, **spec: Any) -> ComputeDomain:
        domain = domain_object(name, namespace=self.namespace, **spec)
        meta = AnnotatedMeta(name=name, namespace=self.namespace)
        return await self.client.create(COMPUTE_DOMAINS, structs.replace(domain, metadata=meta))

    async def create_claim(self, domain: ComputeDomain, node: str, *, pod: str = "pod") -> ResourceClaim:
        """A claim that is allocated on the node and reserved for a pod. The node has not prepared it."""
        config = configuration(domain.metadata.uid, "channel")
        devices = ClaimDevices((DeviceRequest("channel", ExactRequest(CHANNEL_CLASS)),), (config,))
        meta = AnnotatedMeta(name=f"{pod}-channel", namespace=self.namespace)
        created = await self.client.create(RESOURCE_CLAIMS, ResourceClaim(meta, ClaimSpec(devices)))
        from_claim = structs.replace(config, source="FromClaim")
        status = allocated("any", from_claim, nodes=(node,), pods=(pod,)).status
        patch = {"status": msgspec.to_builtins(status, enc_hook=msgspec.json.decode)}
        return await self.client.patch(RESOURCE_CLAIMS, key_of(created), patch, subresource="status")

    async def prepare(self, node: str, *claims: ResourceClaim) -> None:
        """The node reports that it has prepared exactly these claims."""
        await self.report(node, **{**self._reports[node], "prepared": tuple(c.metadata.uid for c in claims)})

    async def cut(self, node: str, *unreachable: str) -> None:
        """The node reports that it cannot reach these members."""
        await self.report(node, **{**self._reports[node], "unreachable": unreachable})

    async def offer_channels(self, node: str, count: int) -> None:
        """The node reports that its GPU driver offers so many channels."""
        await self.report(node, **{**self._reports[node], "channel_count": count})

    async def create_waiting_claim(self, domain: ComputeDomain, *, pod: str) -> ResourceClaim:
        """The claim of a pod that the scheduler has not placed."""
        devices = ClaimDevices(
            (DeviceRequest("channel", ExactRequest(CHANNEL_CLASS)),),
            (configuration(domain.metadata.uid, "channel"),),
        )
        owner = OwnerReference("v1", "Pod", pod, str(uuid.uuid4()), controller=True)
        meta = AnnotatedMeta(name=f"{pod}-channel", namespace=self.namespace, owner_references=(owner,))
        return await self.client.create(RESOURCE_CLAIMS, ResourceClaim(meta, ClaimSpec(devices)))

    async def delete_claim(self, claim: ResourceClaim) -> None:
        await self.client.delete(RESOURCE_CLAIMS, claim)

    async def delete_domain(self, name: str) -> None:
        await self.client.delete(COMPUTE_DOMAINS, (await self.domains())[name])

    async def create_other_template(self, name: str) -> ResourceClaimTemplate:
        """A template that the controller did not create."""
        request = DeviceRequest("gpu", ExactRequest("gpu.nvidia.com"))
        spec = ResourceClaimTemplateSpec(spec=ClaimSpec(ClaimDevices((request,))))
        meta = ObjectMeta(name=name, namespace=self.namespace)
        return await self.client.create(RESOURCE_CLAIM_TEMPLATES, ResourceClaimTemplate(meta, spec))

    async def has_template(self, name: str) -> bool:
        try:
            await self.client.get(RESOURCE_CLAIM_TEMPLATES, Key(self.namespace, name))
        except NotFound:
            return False
        return True

    async def live_partition(self) -> NVLinkPartition:
        return await self.client.get(NVLINK_PARTITIONS, Key("", self.partition))

    async def channels(self) -> dict[int, tuple[str, str]]:
        """Name of the ComputeDomain and state, by channel."""
        entries = (await self.live_partition()).status.channels
        return {entry.channel: (entry.compute_domain.name, entry.state.value) for entry in entries}

    async def channels_in_use(self) -> int:
        return len(await self.channels())

    async def partition_conditions(self) -> dict[str, tuple[str, str]]:
        """Status and message, by type."""
        found = (await self.live_partition()).status.conditions
        return {condition.type: (condition.status, condition.message) for condition in found}

    async def domain_conditions(self, name: str) -> dict[str, tuple[str, str, str]]:
        """Status, reason and message, by type."""
        found = (await self.domains())[name].status.conditions
        return {condition.type: (condition.status, condition.reason, condition.message) for condition in found}

    async def written_events(self, reconcilers: Reconcilers, name: str) -> list[tuple[str, str, str]]:
        """Type, reason and message of every Event about the object, in the order of their creation."""
        writing = asyncio.create_task(reconcilers.events.run())
        await reconcilers.events.flush()
        writing.cancel()
        await asyncio.wait({writing})
        found = await self.client.list(EVENTS, Selection(self.namespace, fields=f"regarding.name={name}"))
        ordered = sorted(found, key=lambda event: event.event_time)
        return [(event.type, event.reason, event.note) for event in ordered]

    async def domains(self) -> dict[str, ComputeDomain]:
        found = await self.client.list(COMPUTE_DOMAINS, Selection(self.namespace))
        return {domain.metadata.name: domain for domain in found}
