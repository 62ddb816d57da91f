"""A Node on a real API server, for which a test runs the publishers of the node program."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from msgspec import structs

from imex_dra.api.meta import ObjectMeta
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.views import NODES, RESOURCE_SLICES, Node, ResourceSlice
from imex_dra.base.clock import Clock
from imex_dra.kube.client import Client, Selection
from imex_dra.node.state import NodeState
from tests.node.snapshots import HEALTHY
from tests.waiting import until_async


class CountingClock(Clock):
    """Counts the decisions of a DevicePublisher: it reads the clock once for each."""

    def __init__(self) -> None:
        self.decisions, self.time = 0, 1000.0

    def monotonic(self) -> float:
        self.decisions += 1
        return self.time


class PublishingNode:
    def __init__(self, client: Client) -> None:
        self.client, self.clock = client, CountingClock()
        self.name = f"node-{uuid.uuid4().hex[:8]}"
        self.state = NodeState(self.name)
        self._healthy = structs.asdict(HEALTHY) | {"node": self.name}
        del self._healthy["partition_id"]  # follows from the reading
        partition = self._healthy["watched_partition"]
        own, *others = partition.status.members
        status = structs.replace(partition.status, members=(structs.replace(own, node=self.name), *others))
        self.partition = structs.replace(partition, status=status)
        self._healthy["watched_partition"] = self.partition

    async def create(self) -> None:
        await self.client.create(NODES, Node(ObjectMeta(name=self.name)))

    def become_healthy(self, **exceptions: Any) -> None:
        """Healthy in every way, with these exceptions."""
        self.state.update(**self._healthy | exceptions)

    async def slices(self) -> list[ResourceSlice]:
        return await self.client.list(RESOURCE_SLICES, Selection(fields=f"spec.nodeName={self.name}"))

    async def reported_imex_state(self) -> str:
        """Of the NVLinkNode; empty if there is none."""
        found = await self.client.list(NVLINK_NODES, Selection(fields=f"metadata.name={self.name}"))
        return found[0].status.imex_state if found else ""

    async def next_decision(self) -> None:
        """Waits until the DevicePublisher has decided at least once on the current state."""
        before = self.clock.decisions
        self.state.update(daemon=structs.replace(self.state.snapshot.daemon, generation=before + 100))
        await until_async(lambda: self.clock.decisions > before)


@asynccontextmanager
async def running(coroutine: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Runs it in the background; it must not end by itself."""
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()
