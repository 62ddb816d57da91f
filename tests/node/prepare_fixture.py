"""A node that prepares claims against a real API server; the test updates the node's state itself."""

import asyncio
import uuid
from typing import Any

import msgspec
from msgspec import Raw, structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS, AllocationMode, ComputeDomain, ComputeDomainSpec
from imex_dra.api.meta import AnnotatedMeta, Key, ObjectMeta, key_of
from imex_dra.api.names import CHANNEL_CLASS, DRIVER, PartitionId, name_format
from imex_dra.api.nvlinkpartition import (
    NVLINK_PARTITIONS,
    ChannelAssignment,
    DomainReference,
    Member,
    NVLinkPartition,
    NVLinkPartitionSpec,
)
from imex_dra.api.opaque import ComputeDomainChannelConfig
from imex_dra.api.views import (
    NAMESPACES,
    RESOURCE_CLAIMS,
    ClaimDevices,
    ClaimSpec,
    DeviceConfig,
    DeviceRequest,
    ExactRequest,
    Namespace,
    OpaqueConfig,
    ResourceClaim,
)
from imex_dra.base.clock import Clock
from imex_dra.dra.plugin import ClaimId
from imex_dra.kube.client import Client
from imex_dra.kube.patch import patch_changes
from imex_dra.node.prepare import ClaimPreparer
from imex_dra.node.state import NodeState
from tests.node.disk import NodeDisk
from tests.node.snapshots import DAEMON, NODE, READING, assignment, member

ALLOCATION_RESULT = {"request": "channel", "driver": DRIVER, "pool": NODE, "device": "channel-3"}


class ManualClock(Clock):
    """Its time changes only when a test sets it."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time


class CountingState(NodeState):
    """Counts how often a prepare has evaluated the state: it takes `changed` before every evaluation."""

    evaluations = 0

    @property
    def changed(self) -> asyncio.Event:
        self.evaluations += 1
        return super().changed


class PrepareFixture:
    def __init__(self, admin: Client, disk: NodeDisk) -> None:
        self.admin = admin
        self.disk = disk
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"
        self.partition = PartitionId(f"{uuid.uuid4()}.1")
        self.state = CountingState(NODE)

    async def set_up(self) -> None:
        """The node is ready, its partition has no channel assigned, and there is no ComputeDomain."""
        await self.admin.create(NAMESPACES, Namespace(ObjectMeta(name=self.namespace)))
        spec = NVLinkPartitionSpec(max_nodes=24, name_format=name_format(self.partition))
        await self.admin.create(NVLINK_PARTITIONS, NVLinkPartition(AnnotatedMeta(name=self.partition), spec))
        await self.write_partition()
        self.update(
            reading=structs.replace(READING, partition=self.partition),
            daemon=structs.replace(DAEMON, partition=self.partition),
        )
        await self.deliver_partition()

    def preparer(
        self, client: Client | None = None, *, deadline: float = 30.0, clock: Clock | None = None
    ) -> ClaimPreparer:
        return ClaimPreparer(
            client or self.admin,
            self.state,
            self.disk.prepared_claims(),
            clock or Clock(),
            deadline=deadline,
        )

    def update(self, **fields: Any) -> None:
        self.state.update(**fields)

    async def deliver_partition(self) -> NVLinkPartition:
        """The node's watch delivers the current NVLinkPartition."""
        live = await self.admin.get(NVLINK_PARTITIONS, Key("", self.partition))
        self.update(watched_partition=live)
        return live

    async def write_partition(self, *channels: ChannelAssignment) -> None:
        """The controller writes the partition's status; the node's watch has not delivered it yet."""
        live = await self.admin.get(NVLINK_PARTITIONS, Key("", self.partition))
        status = structs.replace(live.status, generation=5, members=(member(),), channels=channels)
        after = structs.replace(live, status=status)
        await patch_changes(self.admin, NVLINK_PARTITIONS, live, after, subresource="status")

    async def add_members(self, *members: Member) -> None:
        """The controller adds members to the partition; the node's watch has not delivered it yet."""
        live = await self.admin.get(NVLINK_PARTITIONS, Key("", self.partition))
        status = structs.replace(live.status, members=(*live.status.members, *members))
        after = structs.replace(live, status=status)
        await patch_changes(self.admin, NVLINK_PARTITIONS, live, after, subresource="status")

    async def write_epoch(self, epoch: int) -> None:
        """The controller raises the partition's epoch; the node's watch has not delivered it yet."""
        live = await self.admin.get(NVLINK_PARTITIONS, Key("", self.partition))
        after = structs.replace(live, status=structs.replace(live.status, epoch=epoch))
        await patch_changes(self.admin, NVLINK_PARTITIONS, live, after, subresource="status")

    async def create_domain(self, namespace: str = "", **meta: Any) -> ComputeDomain:
        created = AnnotatedMeta(name="job", namespace=namespace or self.namespace)
        return await self.admin.create(
            COMPUTE_DOMAINS, ComputeDomain(structs.replace(created, **meta), ComputeDomainSpec())
        )

    async def assign_channel(self, domain: ComputeDomain, channel: int = 7, **changes: Any) -> None:
        """The controller assigns a channel; the node's watch has not delivered it yet."""
        meta = domain.metadata
        assigned = assignment(channel, meta.uid, **changes)
        reference = DomainReference(meta.namespace, meta.name, meta.uid)
        await self.write_partition(structs.replace(assigned, compute_domain=reference))

    async def list_nodes(self, domain: ComputeDomain, *names: str) -> None:
        """The controller writes which nodes have claims."""
        nodes = [{"name": n, "ipAddress": "", "cliqueID": self.partition, "status": "NotReady"} for n in names]
        await self.admin.patch(COMPUTE_DOMAINS, key_of(domain), {"status": {"nodes": nodes}}, subresource="status")

    async def create_claim(
        self,
        domain_uid: str,
        *,
        mode: AllocationMode = AllocationMode.SINGLE,
        results: tuple[dict[str, Any], ...] = (ALLOCATION_RESULT,),
        reserved: bool = True,
        labels: dict[str, str] | None = None,
        **parameters: Any,
    ) -> ClaimId:
        """Allocated on this node and reserved for a pod by default; not allocated if `results` is empty."""
        config = ComputeDomainChannelConfig(domain_id=domain_uid, allocation_mode=mode)
        opaque_json = {"driver": DRIVER, "parameters": msgspec.to_builtins(config) | parameters}
        opaque = OpaqueConfig(DRIVER, Raw(msgspec.json.encode(opaque_json["parameters"])))
        devices = ClaimDevices(
            requests=(DeviceRequest("channel", ExactRequest(CHANNEL_CLASS)),),
            config=(DeviceConfig(("channel",), opaque),),
        )
        meta = AnnotatedMeta(name=f"claim-{uuid.uuid4().hex[:6]}", namespace=self.namespace, labels=labels or {})
        created = await self.admin.create(RESOURCE_CLAIMS, ResourceClaim(meta, ClaimSpec(devices)))
        if results:
            configs = [{"source": "FromClaim", "requests": ["channel"], "opaque": opaque_json}]
            allocation = {"devices": {"results": list(results), "config": configs}}
            consumers = [{"resource": "pods", "name": "pod", "uid": "uid-pod"}] if reserved else []
            patch = {"status": {"allocation": allocation, "reservedFor": consumers}}
            await self.admin.patch(RESOURCE_CLAIMS, key_of(created), patch, subresource="status")
        return ClaimId(self.namespace, created.metadata.name, created.metadata.uid)

    async def create_claim_with_channel(self, channel: int = 7) -> tuple[ComputeDomain, ClaimId]:
        """The claim's ComputeDomain has the channel assigned, and the node's watch has delivered it."""
        domain = await self.create_domain()
        claim = await self.create_claim(domain.metadata.uid)
        await self.assign_channel(domain, channel)
        await self.deliver_partition()
        return domain, claim

    async def delete_claim(self, claim: ClaimId) -> None:
        live = await self.admin.get(RESOURCE_CLAIMS, Key(claim.namespace, claim.name))
        await self.admin.delete(RESOURCE_CLAIMS, live)
