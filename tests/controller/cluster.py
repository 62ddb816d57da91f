"""Objects on a real API server, and controllers that see of them what they are shown."""

import uuid
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import AnnotatedMeta, Key, ObjectMeta, key_of
from imex_dra.api.names import CHANNEL_CLASS, PartitionId
from imex_dra.api.nvlinknode import NVLINK_NODES, NVLinkNode
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.api.views import (
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
)
from imex_dra.base.clock import SystemClock
from imex_dra.base.errors import NotFound
from imex_dra.controller.domains import Domains
from imex_dra.controller.observed import Observed
from imex_dra.controller.partitions import Partitions
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.events import EventRecorder
from tests.controller.claims import claim as allocated
from tests.controller.claims import configuration
from tests.controller.claims import domain as domain_object
from tests.controller.partition import card


class Controllers:
    """One controller's view, and what it does."""

    def __init__(self, client: Client) -> None:
        self.client, self.observed = client, Observed()
        events = EventRecorder(client, "test", SystemClock())
        self.partitions = Partitions(client, self.observed, events, SystemClock())
        self.domains = Domains(client, self.observed, events, SystemClock())

    async def look(self) -> None:
        """As if all watches had caught up."""
        observed = self.observed
        observed.domains.replace(await self.client.list(COMPUTE_DOMAINS))
        observed.claims.replace(await self.client.list(RESOURCE_CLAIMS))
        observed.templates.replace(await self.client.list(RESOURCE_CLAIM_TEMPLATES))
        observed.partitions.replace(await self.client.list(NVLINK_PARTITIONS))
        observed.cards.replace(await self.client.list(NVLINK_NODES))
        observed.nodes.replace(await self.client.list(NODES))
        observed.namespaces.replace(await self.client.list(NAMESPACES))


class Cluster:
    """A namespace, a partition and nodes of its own."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.tag = uuid.uuid4().hex[:8]
        self.namespace = f"test-{self.tag}"
        self.partition = PartitionId(f"{uuid.uuid4()}.1")
        self.facts: dict[str, dict[str, Any]] = {}
        """What each node's card says."""

    async def set_up(self) -> "Cluster":
        await self.client.create(NAMESPACES, Namespace(ObjectMeta(name=self.namespace)))
        return self

    async def controllers(self) -> Controllers:
        made = Controllers(self.client)
        await made.look()
        return made

    async def node(self, name: str, **facts: Any) -> str:
        """With its card; returns its full name."""
        full = f"{name}-{self.tag}"
        node = await self.client.create(NODES, Node(ObjectMeta(name=full)))
        assert node.metadata.uid
        await self.client.create(NVLINK_NODES, NVLinkNode(ObjectMeta(name=full)))
        await self.card(full, **facts)
        return full

    async def card(self, node: str, **facts: Any) -> None:
        self.facts[node] = {"partition": self.partition, "address": "10.0.0.1", **facts}
        status = card(node, **self.facts[node]).status
        patch = {"status": {"heldChannels": None, **msgspec.to_builtins(status)}}
        await self.client.patch(NVLINK_NODES, Key("", node), patch, subresource="status")

    async def answer(self) -> None:
        """Every node answers the latest recall of its partition, and every member runs with its list."""
        for node, facts in self.facts.items():
            with suppress(NotFound):
                status = (await self.client.get(NVLINK_PARTITIONS, Key("", facts["partition"]))).status
                is_member = node in {member.node for member in status.members}
                applied = max(facts.get("applied", 0), status.generation if is_member else 0)
                await self.card(node, **{**facts, "answered": status.recall, "applied": applied})

    async def domain(self, name: str, **facts: Any) -> ComputeDomain:
        wanted = domain_object(name, namespace=self.namespace, **facts)
        meta = AnnotatedMeta(name=name, namespace=self.namespace)
        return await self.client.create(COMPUTE_DOMAINS, structs.replace(wanted, metadata=meta))

    async def claim(self, domain: ComputeDomain, node: str, *, pod: str = "pod") -> ResourceClaim:
        """Allocated on the node, reserved for a pod."""
        config = configuration(domain.metadata.uid, "channel")
        devices = ClaimDevices((DeviceRequest("channel", ExactRequest(CHANNEL_CLASS)),), (config,))
        meta = AnnotatedMeta(name=f"{pod}-channel", namespace=self.namespace)
        made = await self.client.create(RESOURCE_CLAIMS, ResourceClaim(meta, ClaimSpec(devices)))
        sourced = structs.replace(config, source="FromClaim")
        status = allocated("any", sourced, nodes=(node,), pods=(pod,)).status
        patch = {"status": msgspec.to_builtins(status)}
        return await self.client.patch(RESOURCE_CLAIMS, key_of(made), patch, subresource="status")

    async def end(self, claim: ResourceClaim) -> None:
        await self.client.delete(RESOURCE_CLAIMS, claim)

    async def live(self) -> NVLinkPartition:
        return await self.client.get(NVLINK_PARTITIONS, Key("", self.partition))

    async def channels(self) -> dict[int, tuple[str, str]]:
        """Name and state, by number."""
        return {c.channel: (c.compute_domain.name, c.state.value) for c in (await self.live()).status.channels}

    async def domains(self) -> dict[str, ComputeDomain]:
        found = await self.client.list(COMPUTE_DOMAINS, Selection(self.namespace))
        return {domain.metadata.name: domain for domain in found}

    async def has_template(self, name: str) -> bool:
        try:
            await self.client.get(RESOURCE_CLAIM_TEMPLATES, Key(self.namespace, name))
        except NotFound:
            return False
        return True
