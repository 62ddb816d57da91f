"""NVLinkPartitions on a real API server: deleted when unused, dead and forgotten nodes, limits of reports."""

import asyncio

import pytest
from click.testing import CliRunner

from imex_dra.api.limits import MAX_CHANNELS, MAX_COUNTER, MAX_NODES
from imex_dra.api.meta import Key, is_deleting
from imex_dra.api.nvlinknode import NVLINK_NODES, ImexState
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, MemberState
from imex_dra.api.views import NODES
from imex_dra.base.errors import Invalid, NotFound
from imex_dra.cli.forget import command as forget_node
from imex_dra.controller.forgetting import forget, partitions_to_forget
from imex_dra.controller.settings import Settings
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.controller.cluster import Cluster

pytestmark = pytest.mark.kube


async def states(cluster: Cluster) -> dict[str, MemberState]:
    return {member.node: member.state for member in (await cluster.live_partition()).status.members}


async def delete_node(cluster: Cluster, node: str) -> None:
    await cluster.client.delete(NODES, await cluster.client.get(NODES, Key("", node)))


async def test_a_partition_that_nobody_uses_is_deleted_and_created_again_when_a_node_needs_it(
    cluster: Cluster,
) -> None:
    node = await cluster.create_node("a")
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers)
    before = await cluster.live_partition()
    await delete_node(cluster, node)
    await reconcilers.sync()
    await reconcilers.partitions.reconcile(cluster.partition)
    with pytest.raises(NotFound):
        await cluster.live_partition()
    await reconcilers.sync()
    await reconcilers.partitions.reconcile(cluster.partition)
    with pytest.raises(NotFound):
        await cluster.live_partition()
    await cluster.create_node("b")
    await cluster.settle(reconcilers)
    after = await cluster.live_partition()
    assert after.metadata.uid != before.metadata.uid
    assert after.status.epoch > before.status.epoch, "a node that returns with an older fence is not refused"


@pytest.mark.parametrize(
    ("product", "max_nodes", "expected"),
    [("NVIDIA GB200", 0, 24), ("NVIDIA GH200 144G HBM3e", 0, 22), ("", 0, 24), ("NVIDIA GB200", 40, 40)],
    ids=["NVL72", "NVL32", "unknown", "flag"],
)
async def test_the_machine_decides_how_many_nodes_a_partition_can_have(
    cluster: Cluster, product: str, max_nodes: int, expected: int
) -> None:
    await cluster.create_node("a", product=product)
    reconcilers = await cluster.reconcilers(settings=Settings(max_nodes=max_nodes))
    await cluster.settle(reconcilers)
    assert (await cluster.live_partition()).spec.max_nodes == expected


async def test_more_nodes_than_expected_find_an_index_if_they_report_first(cluster: Cluster) -> None:
    nodes = [await cluster.create_node(f"n{n}", address=f"10.0.0.{n}") for n in range(30)]
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers)
    partition = await cluster.live_partition()
    assert partition.spec.max_nodes == 36
    assert {member.node for member in partition.status.members} == set(nodes)


async def test_a_partition_in_use_is_not_deleted_and_says_why(cluster: Cluster) -> None:
    node, domain = await cluster.create_node("a"), await cluster.create_domain("one")
    await cluster.create_claim(domain, node)
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers)
    await cluster.client.delete(NVLINK_PARTITIONS, await cluster.live_partition())
    await cluster.settle(reconcilers)
    assert is_deleting(await cluster.live_partition())
    assert await cluster.channels() == {1: ("one", "Assigned")}
    status, message = (await cluster.partition_conditions())["DeletionBlocked"]
    assert status == "True"
    assert "it has 1 members, 1 channels; delete the Node objects of its members first" in message


async def test_a_forgotten_node_leaves_and_joins_again_when_it_reports(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    stays, dead = await cluster.create_node("a"), await cluster.create_node("b", address="10.0.0.2")
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers)
    arguments = [dead, f"--kubeconfig={control_plane.kubeconfig()}"]
    ready = await asyncio.to_thread(CliRunner().invoke, forget_node, [*arguments, "--yes"])
    assert ready.exit_code == 2
    assert f"node {dead} is Ready: drain it" in ready.stderr
    await cluster.set_node_ready(dead, False)
    declined = await asyncio.to_thread(CliRunner().invoke, forget_node, arguments, input="n\n")
    assert declined.exit_code == 1
    assert f"Processes on {dead}, if it is still powered on, may share memory" in declined.output
    assert (await cluster.live_partition()).forgotten_nodes == set()
    forgotten = await asyncio.to_thread(CliRunner().invoke, forget_node, arguments, input="y\n")
    assert forgotten.exit_code == 0
    assert f"{dead} is forgotten in NVLinkPartition {cluster.partition}." in forgotten.output
    await reconcilers.sync()
    await reconcilers.partitions.reconcile(cluster.partition)
    assert (await states(cluster))[dead] is MemberState.LEAVING
    with pytest.raises(NotFound):
        await cluster.client.get(NVLINK_NODES, Key("", dead))
    again = await asyncio.to_thread(CliRunner().invoke, forget_node, arguments)
    assert again.exit_code == 2
    assert f"no NVLinkPartition lists node {dead}" in again.stderr
    await cluster.report_again(dead, address="10.0.0.2")
    await cluster.settle(reconcilers)
    assert (await states(cluster)).keys() == {stays}
    assert (await cluster.live_partition()).forgotten_nodes == {dead}
    await cluster.set_node_ready(dead, True)
    for _ in range(2):
        await cluster.settle(reconcilers)
    assert (await states(cluster)).keys() == {stays, dead}
    assert (await cluster.live_partition()).metadata.annotations == {}


async def test_a_node_is_forgotten_although_the_controller_writes_at_the_same_time(cluster: Cluster) -> None:
    dead = await cluster.create_node("a")
    await cluster.settle(await cluster.reconcilers())
    await cluster.set_node_ready(dead, False)
    partitions = await partitions_to_forget(cluster.client, dead)
    await cluster.client.patch(NVLINK_PARTITIONS, Key("", cluster.partition), {"metadata": {"labels": {"x": "y"}}})
    await forget(cluster.client, dead, partitions)
    assert (await cluster.live_partition()).forgotten_nodes == {dead}


async def test_a_member_whose_node_is_not_ready_is_unknown(cluster: Cluster) -> None:
    node = await cluster.create_node("a", state=ImexState.READY, index=0)
    reconcilers = await cluster.reconcilers()
    for _ in range(2):
        await cluster.settle(reconcilers)
    assert await states(cluster) == {node: MemberState.READY}
    await cluster.set_node_ready(node, False)
    await cluster.settle(reconcilers)
    assert await states(cluster) == {node: MemberState.UNKNOWN}
    status, message = (await cluster.partition_conditions())["Ready"]
    assert status == "False"
    assert message.startswith(f"{node} has been unreachable since ")


async def test_a_report_of_a_node_that_does_not_exist_is_ignored(cluster: Cluster) -> None:
    invented = await cluster.create_node("a", acknowledged=5)
    await delete_node(cluster, invented)
    reconcilers = await cluster.reconcilers()
    await reconcilers.partitions.reconcile(cluster.partition)
    with pytest.raises(NotFound):
        await cluster.live_partition()


@pytest.mark.parametrize(
    "status",
    [
        {"acknowledgedEpoch": MAX_COUNTER + 1},
        {"appliedGeneration": 2**63 - 1},
        {"index": MAX_NODES},
        {"channelCount": MAX_CHANNELS + 1},
        {"heldChannels": [{"partition": "p", "channel": MAX_CHANNELS, "computeDomain": "d"}]},
    ],
    ids=lambda status: next(iter(status)),
)
async def test_the_api_server_rejects_numbers_that_no_partition_can_have(
    cluster: Cluster, status: dict[str, object]
) -> None:
    node = await cluster.create_node("a")
    with pytest.raises(Invalid):
        await cluster.client.patch(NVLINK_NODES, Key("", node), {"status": status}, subresource="status")
