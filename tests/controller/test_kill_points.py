"""A real `imex controller` is killed before and after each of its writes: the next one completes the work.

The process is stopped from outside: a proxy in front of the API server keeps the request of the step from
arriving, or its response from returning, and the process is killed while it waits.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
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

Matches = Callable[[str, bytes], bool]


class Step(NamedTuple):
    request: str
    """Pattern of the request line."""
    body: Callable[[dict[str, Any]], bool] = lambda body: True
    deleting: bool = False
    """Whether it belongs to the deletion of the ComputeDomain."""

    def matches(self, line: str, body: bytes) -> bool:
        return bool(re.search(self.request, line)) and self.body(msgspec.json.decode(body) if body else {})


def changes_finalizers(body: dict[str, Any], *, present: bool) -> bool:
    finalizers = body.get("metadata", {}).get("finalizers", ...)
    return finalizers is not ... and (DOMAIN_FINALIZER in (finalizers or ())) is present


def has_channel(body: dict[str, Any], state: ChannelState) -> bool:
    return any(entry["state"] == state for entry in body.get("status", {}).get("channels") or ())


STEPS = {
    "finalizer added": Step(
        r"^PATCH .*/computedomains/job\b[^/]*$", lambda b: changes_finalizers(b, present=True)
    ),
    "template created": Step(r"^POST .*/resourceclaimtemplates\b"),
    "channel assigned": Step(
        r"^PATCH .*/nvlinkpartitions/.*/status", lambda b: has_channel(b, ChannelState.ASSIGNED)
    ),
    "status written": Step(r"^PATCH .*/computedomains/job/status", lambda b: bool(b["status"].get("partitions"))),
    "template deleted": Step(r"^DELETE .*/resourceclaimtemplates/job\b", deleting=True),
    "channel released": Step(
        r"^PATCH .*/nvlinkpartitions/.*/status",
        lambda b: has_channel(b, ChannelState.RELEASED),
        deleting=True,
    ),
    "finalizer removed": Step(
        r"^PATCH .*/computedomains/job\b[^/]*$", lambda b: changes_finalizers(b, present=False), deleting=True
    ),
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
