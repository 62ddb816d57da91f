"""NVLinkPartitions on a real API server: what is written, also with a second controller or a bad cache."""

import msgspec
import pytest

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import Key, key_of
from imex_dra.api.nvlinknode import HeldChannel, ImexState
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, MemberState
from imex_dra.api.views import NODES, ResourceClaim
from imex_dra.base.errors import Conflict
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.controller.cluster import Cluster, Reconcilers

pytestmark = pytest.mark.kube


async def delete_and_settle(cluster: Cluster, reconcilers: Reconcilers, name: str, claim: ResourceClaim) -> None:
    domain = (await cluster.domains())[name]
    await cluster.delete_domain(name)
    await cluster.delete_claim(claim)
    await cluster.settle(reconcilers, domain)


async def test_a_claim_gives_its_computedomain_a_channel(cluster: Cluster) -> None:
    node = await cluster.create_node("a")
    one, two = await cluster.create_domain("one"), await cluster.create_domain("two")
    await cluster.create_claim(one, node)
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers, one)
    await cluster.create_claim(two, node, pod="other")
    await cluster.create_claim(one, node, pod="third")
    await cluster.settle(reconcilers, two)
    assert await cluster.channels() == {1: ("one", "Assigned"), 2: ("two", "Assigned")}
    assert [(m.node, m.index) for m in (await cluster.live_partition()).status.members] == [(node, 0)]
    assert await cluster.has_template("one")


async def test_of_two_controllers_that_plan_from_the_same_status_only_one_writes(cluster: Cluster) -> None:
    node = await cluster.create_node("a")
    one, two = await cluster.create_domain("one"), await cluster.create_domain("two")
    first = await cluster.reconcilers()
    await cluster.settle(first)
    await cluster.create_claim(one, node)
    await first.sync()
    await cluster.create_claim(two, node, pod="other")
    second = await cluster.reconcilers()
    await first.partitions.reconcile(cluster.partition)
    with pytest.raises(Conflict):
        await second.partitions.reconcile(cluster.partition)
    assert await cluster.channels() == {1: ("one", "Assigned")}
    await cluster.settle(second)
    assert await cluster.channels() == {1: ("one", "Assigned"), 2: ("two", "Assigned")}


async def test_two_controllers_create_a_new_partition_once(cluster: Cluster) -> None:
    await cluster.create_node("a")
    first, second = await cluster.reconcilers(), await cluster.reconcilers()
    await first.partitions.reconcile(cluster.partition)
    await second.partitions.reconcile(cluster.partition)
    await cluster.settle(second)
    assert len((await cluster.live_partition()).status.members) == 1


async def test_reconciling_again_writes_nothing(cluster: Cluster) -> None:
    node, domain = await cluster.create_node("a"), await cluster.create_domain("one")
    await cluster.create_claim(domain, node)
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers, domain)
    before = await cluster.live_partition(), await cluster.domains()
    await cluster.settle(reconcilers, domain)
    assert (await cluster.live_partition(), await cluster.domains()) == before


async def test_an_empty_cache_does_not_release_a_channel(cluster: Cluster) -> None:
    node, domain = await cluster.create_node("a"), await cluster.create_domain("one")
    await cluster.create_claim(domain, node)
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers, domain)
    reconcilers.caches.compute_domains.replace([])
    reconcilers.caches.claims.replace([])
    await reconcilers.partitions.reconcile(cluster.partition)
    assert await cluster.channels() == {1: ("one", "Assigned")}


async def test_a_claim_without_requests_does_not_prevent_a_release(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    node = await cluster.create_node("a")
    deleted, other = await cluster.create_domain("one"), await cluster.create_domain("two")
    claim = await cluster.create_claim(deleted, node)
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers, deleted)
    await cluster.delete_domain("one")
    await cluster.delete_claim(claim)
    await cluster.create_claim(other, node, pod="other")
    await reconcilers.sync()
    empty = {"metadata": {"name": "empty", "namespace": cluster.namespace}, "spec": {"devices": {}}}
    control_plane.kubectl.apply({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **empty})
    try:
        await reconcilers.partitions.reconcile(cluster.partition)
    finally:
        control_plane.kubectl("delete", "resourceclaim", "empty", f"--namespace={cluster.namespace}")
    assert await cluster.channels() == {1: ("one", "Released"), 2: ("two", "Assigned")}


async def test_the_release_annotation_releases_a_channel_that_pods_still_hold(cluster: Cluster) -> None:
    node, domain = await cluster.create_node("a"), await cluster.create_domain("one")
    await cluster.create_claim(domain, node)
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers, domain)
    await cluster.delete_domain("one")
    patch = {"metadata": {"annotations": {"imex-dra.io/release": "now"}}}
    await cluster.client.patch(COMPUTE_DOMAINS, key_of(domain), patch)
    await cluster.settle(reconcilers, domain)
    assert await cluster.channels() == {1: ("one", "Released")}
    assert await cluster.domains() == {}


async def test_a_leaving_member_creates_no_demand(cluster: Cluster) -> None:
    stays, moves = await cluster.create_node("a"), await cluster.create_node("b", address="10.0.0.2")
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers)
    await cluster.report(moves, partition=f"{cluster.partition}9")
    await reconcilers.sync()
    await reconcilers.partitions.reconcile(cluster.partition)
    states = {m.node: m.state for m in (await cluster.live_partition()).status.members}
    assert states == {stays: MemberState.JOINING, moves: MemberState.LEAVING}
    await cluster.create_claim(await cluster.create_domain("one"), moves)
    await cluster.settle(reconcilers)
    assert await cluster.channels() == {}


async def test_a_member_leaves_when_its_node_is_deleted_but_not_when_its_nvlinknode_is_missing(
    cluster: Cluster,
) -> None:
    deleted, missing = await cluster.create_node("a"), await cluster.create_node("b", address="10.0.0.2")
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers)
    await cluster.client.delete(NODES, await cluster.client.get(NODES, Key("", deleted)))
    await reconcilers.sync()
    reconcilers.caches.nvlink_nodes.replace([])
    await reconcilers.partitions.reconcile(cluster.partition)
    states = {m.node: m.state for m in (await cluster.live_partition()).status.members}
    assert states == {deleted: MemberState.LEAVING, missing: MemberState.UNKNOWN}


async def test_channels_are_reused_after_the_node_no_longer_holds_them(cluster: Cluster) -> None:
    node = await cluster.create_node("a", channel_count=3)
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers)
    assigned = []
    for number in range(5):
        name = f"job-{number}"
        domain = await cluster.create_domain(name)
        claim = await cluster.create_claim(domain, node, pod=name)
        for _ in range(2):
            await cluster.settle(reconcilers, domain)
        assigned += [channel for channel, (holder, _) in (await cluster.channels()).items() if holder == name]
        await delete_and_settle(cluster, reconcilers, name, claim)
    assert assigned == [1, 2, 1, 2, 1]


async def test_a_channel_that_a_node_still_holds_is_not_reused_and_a_condition_names_the_node(
    cluster: Cluster,
) -> None:
    node = await cluster.create_node("a", channel_count=2)
    reconcilers = await cluster.reconcilers()
    first = await cluster.create_domain("first")
    claim = await cluster.create_claim(first, node)
    await cluster.settle(reconcilers, first)
    held = (HeldChannel(cluster.partition, 1, first.metadata.uid),)
    await cluster.report(node, channel_count=2, held=held)
    await cluster.acknowledge()
    await delete_and_settle(cluster, reconcilers, "first", claim)
    second = await cluster.create_domain("second")
    await cluster.create_claim(second, node, pod="other")
    for _ in range(3):
        await cluster.settle(reconcilers, second)
    assert await cluster.channels() == {1: ("first", "Released")}
    assert (await cluster.partition_conditions())["ChannelsReusable"] == (
        "False",
        f"1 released channel cannot be reused yet: {node} holds channel 1 (delete the pod that uses it)",
    )
    await cluster.report(node, channel_count=2)
    await cluster.acknowledge()
    await cluster.settle(reconcilers, second)
    assert await cluster.channels() == {1: ("second", "Assigned")}
    assert (await cluster.partition_conditions())["ChannelsReusable"][0] == "True"


async def test_a_node_that_holds_a_channel_of_another_partition_must_be_drained_first(cluster: Cluster) -> None:
    await cluster.create_node("a")
    reconcilers = await cluster.reconcilers()
    domain = await cluster.create_domain("one")
    held = (HeldChannel("another.1", 4, domain.metadata.uid),)
    moved = await cluster.create_node("b", held=held, address="10.0.0.2")
    await cluster.create_claim(domain, moved, pod="rank-0")
    await cluster.settle(reconcilers)
    assert moved not in {m.node for m in (await cluster.live_partition()).status.members}
    status, message = (await cluster.partition_conditions())["NodesAdmitted"]
    assert status == "False"
    assert f"pods {cluster.namespace}/rank-0 (channel 4 of another.1); delete the pods that use them" in message
    await cluster.report(moved, address="10.0.0.2")
    await cluster.settle(reconcilers)
    assert moved in {m.node for m in (await cluster.live_partition()).status.members}
    assert (await cluster.partition_conditions())["NodesAdmitted"][0] == "True"


async def test_a_restored_partition_is_completed_before_it_assigns_a_channel(cluster: Cluster) -> None:
    node, other = await cluster.create_node("a"), await cluster.create_node("b", address="10.0.0.2")
    one = await cluster.create_domain("one")
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers)
    backup = await cluster.live_partition()
    await cluster.create_claim(one, node)
    await cluster.settle(reconcilers, one)
    later = backup.status.epoch + 4
    await cluster.report(node, acknowledged=later, held=(HeldChannel(cluster.partition, 1, one.metadata.uid),))
    await cluster.report(other, acknowledged=later, address="10.0.0.2")
    restored = {"status": msgspec.to_builtins(backup.status) | {"channels": None, "lastChannel": None}}
    await cluster.client.patch(NVLINK_PARTITIONS, key_of(backup), restored, subresource="status")
    two = await cluster.create_domain("two")
    await cluster.create_claim(two, node, pod="other")
    reconcilers = await cluster.reconcilers()
    await reconcilers.partitions.reconcile(cluster.partition)
    assert await cluster.channels() == {1: ("one", "Assigned")}
    assert set((await cluster.live_partition()).status.pending_reports) == {node, other}
    assert (await cluster.live_partition()).status.epoch >= later + 2
    assert (await cluster.partition_conditions())["ChannelsReusable"][0] == "False"
    for _ in range(2):
        await cluster.settle(reconcilers)
    assert {m.node for m in (await cluster.live_partition()).status.members} == {node, other}
    assert await cluster.channels() == {1: ("one", "Assigned"), 2: ("two", "Assigned")}


async def test_a_leader_notices_that_its_last_assignment_is_lost_before_any_node_has_reported_it(
    cluster: Cluster,
) -> None:
    node, one = await cluster.create_node("a"), await cluster.create_domain("one")
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers)
    backup = await cluster.live_partition()
    await cluster.create_claim(one, node)
    await cluster.settle(reconcilers, one)
    restored = {"status": {"channels": None, "lastChannel": msgspec.to_builtins(backup.status).get("lastChannel")}}
    await cluster.client.patch(NVLINK_PARTITIONS, key_of(backup), restored, subresource="status")
    await reconcilers.sync()
    await reconcilers.partitions.reconcile(cluster.partition)
    assert await cluster.channels() == {1: ("one", "Assigned")}
    assert (await cluster.live_partition()).status.pending_reports == (node,)


async def test_a_deleted_partition_is_recovered_with_its_members_and_channels(cluster: Cluster) -> None:
    report = {"state": ImexState.READY}
    node = await cluster.create_node("a", **report)
    await cluster.create_node("b", address="10.0.0.2")
    domain = await cluster.create_domain("one")
    await cluster.create_claim(domain, node)
    reconcilers = await cluster.reconcilers()
    await cluster.settle(reconcilers, domain)
    lost = await cluster.live_partition()
    later = lost.status.generation + 41
    await cluster.report(node, index=1, applied=later, **report)
    await cluster.acknowledge()
    await cluster.client.patch(NVLINK_PARTITIONS, key_of(lost), {"metadata": {"finalizers": None}})
    await cluster.client.delete(NVLINK_PARTITIONS, lost)
    await cluster.settle(await cluster.reconcilers())
    found = await cluster.live_partition()
    assert found.metadata.uid != lost.metadata.uid
    assert {m.node: m.index for m in found.status.members}[node] == 1
    assert found.status.generation > later
    assert await cluster.channels() == {1: ("one", "Assigned")}
