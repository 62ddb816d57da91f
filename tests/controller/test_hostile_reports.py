"""A real controller serves a ComputeDomain while a node of its rack reports what cannot be true."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from imex_dra.api.meta import Key, ObjectMeta
from imex_dra.api.nvlinknode import NVLINK_NODES, HeldChannel, NVLinkNode
from imex_dra.api.nvlinkpartition import NVLinkPartition
from imex_dra.api.views import NODES, Node
from tests.controller.cluster import Cluster
from tests.controller.partition import nvlink_node
from tests.controller.test_hostile_objects import running_leader, serve
from tests.waiting import until_async

pytestmark = pytest.mark.kube

Report = Callable[[NVLinkPartition], dict[str, Any]]


def one_channel(partition: NVLinkPartition) -> dict[str, Any]:
    return {"channel_count": 1, "acknowledged": partition.status.epoch}


def far_epoch(partition: NVLinkPartition) -> dict[str, Any]:
    return {"acknowledged": partition.status.epoch + 10**6}


def far_member_list(partition: NVLinkPartition) -> dict[str, Any]:
    return {"applied": partition.status.generation + 10**6, "acknowledged": partition.status.epoch}


def invented_channel(partition: NVLinkPartition) -> dict[str, Any]:
    held = HeldChannel(partition.metadata.name, 7, "invented")
    return {"held": (held,), "acknowledged": partition.status.epoch}


def never_acknowledges(_: NVLinkPartition) -> dict[str, Any]:
    return {}


async def report(cluster: Cluster, report: Report, *, node_exists: bool) -> str:
    """As a node that nothing else of the test speaks for: it never reports again."""
    name = f"rogue-{cluster.tag}"
    if node_exists:
        await cluster.client.create(NODES, Node(ObjectMeta(name=name)))
    await cluster.client.create(NVLINK_NODES, NVLinkNode(ObjectMeta(name=name)))
    values = {"partition": cluster.partition, "address": "10.0.0.66", **report(await cluster.live_partition())}
    patch = {"status": msgspec.to_builtins(nvlink_node(name, **values).status)}
    await cluster.client.patch(NVLINK_NODES, Key("", name), patch, subresource="status")
    return name


@pytest.mark.parametrize("node_exists", [True, False], ids=["its Node exists", "without a Node"])
@pytest.mark.parametrize("hostile", [one_channel, far_epoch, far_member_list, never_acknowledges])
async def test_a_report_that_cannot_be_true_costs_only_its_node(
    cluster: Cluster, hostile: Report, node_exists: bool
) -> None:
    node = await cluster.create_node("a")
    async with running_leader(cluster):
        await until_async(cluster.run_daemons)
        await serve(cluster, "before", node)
        epoch = (await cluster.live_partition()).status.epoch
        await report(cluster, hostile, node_exists=node_exists)
        await serve(cluster, "meanwhile", node)
    # A new leader does not know what the previous one wrote.
    async with running_leader(cluster):
        await serve(cluster, "after-a-restart", node)
    status = (await cluster.live_partition()).status
    assert (status.epoch, status.pending_reports) == (epoch, ())


async def test_a_node_that_invents_a_channel_is_named_and_others_are_served(cluster: Cluster) -> None:
    node = await cluster.create_node("a")

    async def admission() -> str:
        return (await cluster.partition_conditions()).get("NodesAdmitted", ("", ""))[1]

    async with running_leader(cluster):
        await until_async(cluster.run_daemons)
        await serve(cluster, "before", node)
        rogue = await report(cluster, invented_channel, node_exists=True)
        await serve(cluster, "meanwhile", node)
        await until_async(lambda: says(admission(), rogue))


async def says(found: Any, expected: str) -> bool:
    return expected in await found
