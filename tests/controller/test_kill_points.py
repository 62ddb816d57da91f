"""A real `imex controller` is killed before and after each of its writes: the next one completes the work.

The process is stopped from outside: a proxy in front of the API server keeps the request of the step from
arriving, or its response from returning, and the process is killed while it waits.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.meta import Key
from imex_dra.api.names import DOMAIN_FINALIZER, LEASE, NAMESPACE
from imex_dra.api.nvlinkpartition import ChannelState
from imex_dra.api.views import LEASES, ResourceClaim
from imex_dra.base.errors import NotFound
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.process import Process
from tests.controller.cluster import Cluster
from tests.controller.processes import CONTROLLERS, AnsweringNodes, controller
from tests.kube.faultproxy import FaultProxy
from tests.waiting import until_async

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(300)]


class Step(NamedTuple):
    request: str
    """Pattern of the request line."""
    field: str = ""
    """Pattern of the path of a field that a PATCH sets or removes."""
    value: Any = ...
    """The new value of that field; None if it is removed."""
    deleting: bool = False
    """Whether it belongs to the deletion of the ComputeDomain."""

    def matches(self, line: str, body: bytes) -> bool:
        if not re.search(self.request, line):
            return False
        return not self.field or any(
            re.fullmatch(self.field, path) and self.value in (..., value)
            for operation in msgspec.json.decode(body)
            if operation["op"] != "test"
            for path, value in fields(operation["path"], operation.get("value"))
        )


def fields(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The single values below a path of a JSON Patch, each with its own path."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from fields(f"{path}/{name}", inner)
    else:
        yield path, value


OBJECT, STATUS = r"^PATCH .*/computedomains/job\b[^/]*$", r"^PATCH .*/computedomains/job/status"
PARTITION, STATE = r"^PATCH .*/nvlinkpartitions/.*/status", r"/status/channels/\d+/state"
STEPS = {
    "finalizer added": Step(OBJECT, r"/metadata/finalizers/\d+", DOMAIN_FINALIZER),
    "template created": Step(r"^POST .*/resourceclaimtemplates\b"),
    "channel assigned": Step(PARTITION, STATE, ChannelState.ASSIGNED),
    "status written": Step(STATUS, r"/status/partitions/.*"),
    "template deleted": Step(r"^DELETE .*/resourceclaimtemplates/job\b", deleting=True),
    "channel released": Step(PARTITION, STATE, ChannelState.RELEASED, deleting=True),
    "finalizer removed": Step(OBJECT, r"/metadata/finalizers", None, deleting=True),
}


class Scenario:
    """One ComputeDomain with a claim on each of two nodes, and a controller behind a proxy."""

    def __init__(self, cluster: Cluster, process: Process, proxy: FaultProxy, nodes: list[str]) -> None:
        self.cluster, self.process, self.proxy, self.nodes = cluster, process, proxy, nodes
        self.domain: ComputeDomain | None = None
        self.claims: list[ResourceClaim] = []

    async def create(self) -> None:
        self.domain = await self.cluster.create_domain("job")
        self.claims = [
            await self.cluster.create_claim(self.domain, node, pod=f"p{index}")
            for index, node in enumerate(self.nodes)
        ]

    async def delete(self) -> None:
        for claim in self.claims:
            await self.cluster.delete_claim(claim)
        await self.cluster.delete_domain("job")

    async def replace_killed_controller(self) -> None:
        self.process.kill()
        assert self.process.wait(within=60)
        # Otherwise the next one would wait until the Lease of the killed one expires.
        lease = await self.cluster.client.get(LEASES, Key(NAMESPACE, LEASE))
        await self.cluster.client.delete(LEASES, lease)
        self.process.start()

    async def until_served(self) -> None:
        await until_async(self._is_served)

    async def until_gone(self) -> None:
        await until_async(self._is_gone)

    async def _is_served(self) -> bool:
        domain = (await self.cluster.domains())["job"]
        owned = await self._assigned()
        shown = [partition.channel for partition in domain.status.partitions]
        return (
            len(owned) == 1
            and shown == owned
            and DOMAIN_FINALIZER in domain.metadata.finalizers
            and await self.cluster.has_template("job")
        )

    async def _is_gone(self) -> bool:
        exists = "job" in await self.cluster.domains()
        return not exists and not await self._assigned() and not await self.cluster.has_template("job")

    async def _assigned(self) -> list[int]:
        """Channels that belong to the ComputeDomain. Two would be a leak."""
        try:
            channels = (await self.cluster.live_partition()).status.channels
        except NotFound:
            return []
        return [entry.channel for entry in channels if entry.state is ChannelState.ASSIGNED]


@pytest.fixture
async def scenario(
    controllers_cluster: Cluster, controllers_plane: ControlPlane, tmp_path: Path
) -> AsyncIterator[Scenario]:
    cluster, plane = controllers_cluster, controllers_plane
    names = [await cluster.create_node(node) for node in ("a", "b")]
    async with (
        FaultProxy(plane.url, plane.authority.certificate) as proxy,
        AnsweringNodes(cluster, channel_count=64).running(*names),
    ):
        kubeconfig = proxy.kubeconfig(plane.kubeconfig(CONTROLLERS[0]), tmp_path)
        process = controller(kubeconfig, tmp_path / "controller.log")
        process.start()
        yield Scenario(cluster, process, proxy, names)
        # In a thread: the proxy serves its last requests.
        await asyncio.to_thread(process.stop)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_killed_controller_is_replaced_without_a_trace(scenario: Scenario, step: str, after: bool) -> None:
    point = STEPS[step]
    if point.deleting:
        await scenario.create()
        await scenario.until_served()
    hold = scenario.proxy.hold(point.matches, after=after)
    await (scenario.delete() if point.deleting else scenario.create())
    await until_async(hold.reached.is_set, what=f"the request of: {step}")
    await scenario.replace_killed_controller()
    if not point.deleting:
        await scenario.until_served()
        await scenario.delete()
    await scenario.until_gone()
