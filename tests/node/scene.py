"""A node that prepares claims of a real API server, and whose situation a test drives by hand."""

import asyncio
import uuid
from typing import Any

from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS, AllocationMode, ComputeDomain, ComputeDomainSpec
from imex_dra.api.meta import AnnotatedMeta, Key, ObjectMeta, key_of
from imex_dra.api.names import CHANNEL_CLASS, DRIVER, PartitionId, name_format
from imex_dra.api.nvlinkpartition import (
    NVLINK_PARTITIONS,
    ChannelAssignment,
    DomainReference,
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
from imex_dra.base.clock import Clock, SystemClock
from imex_dra.dra.plugin import ClaimId
from imex_dra.kube.client import Client
from imex_dra.kube.patch import patch_changes
from imex_dra.node.preparation import Preparation
from imex_dra.node.situation import Situation
from tests.node.desk import Desk
from tests.node.facts import DAEMON, NODE, READING, assigned, member

RESULT = {"request": "channel", "driver": DRIVER, "pool": NODE, "device": "channel-3"}


class HandClock(SystemClock):
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time


class WatchedSituation(Situation):
    """Counts how often somebody began to look at it, or to wait for a change."""

    looks = 0

    @property
    def changed(self) -> asyncio.Event:
        self.looks += 1
        return super().changed


class Scene:
    def __init__(self, admin: Client, desk: Desk) -> None:
        self.admin = admin
        self.desk = desk
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"
        self.partition = PartitionId(f"{uuid.uuid4()}.1")
        self.situation = WatchedSituation(NODE)

    async def set_up(self) -> "Scene":
        """A node that is able in every way, and has no ComputeDomain yet."""
        await self.admin.create(NAMESPACES, Namespace(ObjectMeta(name=self.namespace)))
        spec = NVLinkPartitionSpec(slots=24, name_format=name_format(self.partition))
        await self.admin.create(NVLINK_PARTITIONS, NVLinkPartition(AnnotatedMeta(name=self.partition), spec))
        await self.write_partition()
        self.learn(
            reading=structs.replace(READING, partition=self.partition),
            daemon=structs.replace(DAEMON, partition=self.partition),
        )
        await self.see_partition()
        return self

    def preparation(
        self, client: Client | None = None, *, deadline: float = 30.0, clock: Clock | None = None
    ) -> Preparation:
        return Preparation(
            client or self.admin, self.situation, self.desk.ledger(), clock or SystemClock(), deadline=deadline
        )

    def learn(self, **facts: Any) -> None:
        self.situation.learn(**facts)

    async def see_partition(self) -> NVLinkPartition:
        """As the watch would."""
        live = await self.admin.get(NVLINK_PARTITIONS, Key("", self.partition))
        self.learn(partition=live)
        return live

    async def write_partition(self, *channels: ChannelAssignment) -> None:
        """As the controller would; the node does not know of it yet."""
        live = await self.admin.get(NVLINK_PARTITIONS, Key("", self.partition))
        status = structs.replace(live.status, generation=5, members=(member(),), channels=channels)
        after = structs.replace(live, status=status)
        await patch_changes(self.admin, NVLINK_PARTITIONS, live, after, subresource="status")

    async def domain(self, name: str = "job", namespace: str = "", **meta: Any) -> ComputeDomain:
        made = AnnotatedMeta(name=name, namespace=namespace or self.namespace)
        return await self.admin.create(
            COMPUTE_DOMAINS, ComputeDomain(structs.replace(made, **meta), ComputeDomainSpec())
        )

    async def assign(self, domain: ComputeDomain, channel: int = 7, **facts: Any) -> None:
        await self.write_partition(self.assignment(domain, channel, **facts))

    def assignment(self, domain: ComputeDomain, channel: int = 7, **facts: Any) -> ChannelAssignment:
        meta = domain.metadata
        entry = assigned(channel, meta.uid, **facts)
        return structs.replace(entry, compute_domain=DomainReference(meta.namespace, meta.name, meta.uid))

    async def claim(
        self,
        domain_uid: str,
        *,
        mode: AllocationMode = AllocationMode.SINGLE,
        results: tuple[dict[str, Any], ...] = (RESULT,),
        **parameters: Any,
    ) -> ClaimId:
        """Allocated here, unless `results` say otherwise; without results: not at all."""
        config = (
            ComputeDomainChannelConfig(domain_id=domain_uid, allocation_mode=mode).to_parameters() | parameters
        )
        opaque = OpaqueConfig(DRIVER, config)
        devices = ClaimDevices(
            requests=(DeviceRequest("channel", ExactRequest(CHANNEL_CLASS)),),
            config=(DeviceConfig(("channel",), opaque),),
        )
        meta = AnnotatedMeta(name=f"claim-{uuid.uuid4().hex[:6]}", namespace=self.namespace)
        made = await self.admin.create(RESOURCE_CLAIMS, ResourceClaim(meta, ClaimSpec(devices)))
        if results:
            configs = [{"source": "FromClaim", "requests": ["channel"], "opaque": _json(opaque)}]
            allocation = {"devices": {"results": list(results), "config": configs}}
            patch = {"status": {"allocation": allocation}}
            await self.admin.patch(RESOURCE_CLAIMS, key_of(made), patch, subresource="status")
        return ClaimId(self.namespace, made.metadata.name, made.metadata.uid)

    async def forget(self, claim: ClaimId) -> None:
        """The claim is gone from the API server."""
        live = await self.admin.get(RESOURCE_CLAIMS, Key(claim.namespace, claim.name))
        await self.admin.delete(RESOURCE_CLAIMS, live)


def _json(opaque: OpaqueConfig) -> dict[str, Any]:
    return {"driver": opaque.driver, "parameters": opaque.parameters}
