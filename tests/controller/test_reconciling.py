"""Decisions that became writes, on a real API server: what one controller did, another can't spoil."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import Key, ObjectMeta, key_of
from imex_dra.api.nvlinknode import ImexState
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, MemberState
from imex_dra.api.views import (
    NODES,
    RESOURCE_CLAIM_TEMPLATES,
    ClaimDevices,
    ClaimSpec,
    DeviceRequest,
    ExactRequest,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
)
from imex_dra.base.errors import Conflict
from imex_dra.controller.program import Program
from imex_dra.kube.conditions import find_condition
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from tests.controller.cluster import Cluster, Controllers

pytestmark = pytest.mark.kube


async def settle(controllers: Controllers, cluster: Cluster, *domains: ComputeDomain) -> None:
    await controllers.look()
    await controllers.partitions.reconcile(cluster.partition)
    for domain in domains:
        await controllers.look()
        await controllers.domains.reconcile(key_of(domain))


async def test_a_claim_makes_its_computedomain_the_owner_of_a_channel(cluster: Cluster) -> None:
    node, one, two = await cluster.node("a"), await cluster.domain("one"), await cluster.domain("two")
    await cluster.claim(one, node)
    controllers = await cluster.controllers()
    await settle(controllers, cluster, one)
    await cluster.claim(two, node, pod="other")
    await cluster.claim(one, node, pod="third")
    await settle(controllers, cluster, two)
    assert await cluster.channels() == {1: ("one", "Assigned"), 2: ("two", "Assigned")}
    assert [(m.node, m.slot) for m in (await cluster.live()).status.members] == [(node, 0)]
    assert await cluster.has_template("one")


async def test_of_two_controllers_that_decide_at_once_the_later_writes_nothing(cluster: Cluster) -> None:
    node, one, two = await cluster.node("a"), await cluster.domain("one"), await cluster.domain("two")
    first = await cluster.controllers()
    await first.partitions.reconcile(cluster.partition)
    await cluster.claim(one, node)
    await first.look()
    await cluster.claim(two, node, pod="other")
    second = await cluster.controllers()
    await first.partitions.reconcile(cluster.partition)
    with pytest.raises(Conflict):
        await second.partitions.reconcile(cluster.partition)
    assert await cluster.channels() == {1: ("one", "Assigned")}
    await settle(second, cluster)
    assert await cluster.channels() == {1: ("one", "Assigned"), 2: ("two", "Assigned")}


async def test_two_controllers_that_meet_a_new_partition_make_one(cluster: Cluster) -> None:
    await cluster.node("a")
    first, second = await cluster.controllers(), await cluster.controllers()
    await first.partitions.reconcile(cluster.partition)
    await second.partitions.reconcile(cluster.partition)
    assert len((await cluster.live()).status.members) == 1


async def test_deciding_again_writes_nothing(cluster: Cluster) -> None:
    node, domain = await cluster.node("a"), await cluster.domain("one")
    await cluster.claim(domain, node)
    controllers = await cluster.controllers()
    await settle(controllers, cluster, domain)
    before = await cluster.live(), await cluster.domains()
    await settle(controllers, cluster, domain)
    assert (await cluster.live(), await cluster.domains()) == before


async def test_an_empty_cache_is_no_reason_to_take_a_channel_away(cluster: Cluster) -> None:
    node, domain = await cluster.node("a"), await cluster.domain("one")
    await cluster.claim(domain, node)
    controllers = await cluster.controllers()
    await settle(controllers, cluster, domain)
    controllers.observed.domains.replace([])
    controllers.observed.claims.replace([])
    await controllers.partitions.reconcile(cluster.partition)
    assert await cluster.channels() == {1: ("one", "Assigned")}


async def test_deletion_waits_for_the_pods_and_names_them_then_the_channel_rests(cluster: Cluster) -> None:
    node, domain = await cluster.node("a"), await cluster.domain("one")
    claim = await cluster.claim(domain, node, pod="rank-0")
    controllers = await cluster.controllers()
    await settle(controllers, cluster, domain)
    await cluster.client.delete(COMPUTE_DOMAINS, (await cluster.domains())["one"])
    await settle(controllers, cluster, domain)
    condition = find_condition((await cluster.domains())["one"].status.conditions, "Deleting")
    assert condition is not None
    assert f"deletion waits for pods that still hold a channel: {cluster.namespace}/rank-0" in condition.message
    assert await cluster.channels() == {1: ("one", "Assigned")}
    assert not await cluster.has_template("one")
    await cluster.end(claim)
    await settle(controllers, cluster, domain)
    assert await cluster.channels() == {1: ("one", "Resting")}
    assert await cluster.domains() == {}


async def test_released_by_annotation_the_channel_rests_although_pods_hold_it(cluster: Cluster) -> None:
    node, domain = await cluster.node("a"), await cluster.domain("one")
    await cluster.claim(domain, node)
    controllers = await cluster.controllers()
    await settle(controllers, cluster, domain)
    await cluster.client.delete(COMPUTE_DOMAINS, (await cluster.domains())["one"])
    patch = {"metadata": {"annotations": {"imex-dra.io/release": "now"}}}
    await cluster.client.patch(COMPUTE_DOMAINS, key_of(domain), patch)
    await settle(controllers, cluster, domain)
    assert await cluster.channels() == {1: ("one", "Resting")}
    assert await cluster.domains() == {}


async def test_a_claim_that_asks_for_nothing_stops_nobody(cluster: Cluster, control_plane: ControlPlane) -> None:
    node, ending, other = await cluster.node("a"), await cluster.domain("one"), await cluster.domain("two")
    claim = await cluster.claim(ending, node)
    controllers = await cluster.controllers()
    await settle(controllers, cluster, ending)
    await cluster.client.delete(COMPUTE_DOMAINS, (await cluster.domains())["one"])
    await cluster.end(claim)
    await cluster.claim(other, node, pod="other")
    await controllers.look()
    nothing = {"metadata": {"name": "nothing", "namespace": cluster.namespace}, "spec": {"devices": {}}}
    control_plane.kubectl.apply({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **nothing})
    try:
        await controllers.partitions.reconcile(cluster.partition)
    finally:
        control_plane.kubectl("delete", "resourceclaim", "nothing", f"--namespace={cluster.namespace}")
    assert await cluster.channels() == {1: ("one", "Resting"), 2: ("two", "Assigned")}


async def test_a_node_that_leaves_gets_no_new_channels_where_it_was(cluster: Cluster) -> None:
    stays, moves = await cluster.node("a"), await cluster.node("b", address="10.0.0.2")
    controllers = await cluster.controllers()
    await settle(controllers, cluster)
    await cluster.card(moves, partition=f"{cluster.partition}9")
    await settle(controllers, cluster)
    states = {m.node: m.state for m in (await cluster.live()).status.members}
    assert states == {stays: MemberState.JOINING, moves: MemberState.LEAVING}
    await cluster.claim(await cluster.domain("one"), moves)
    await settle(controllers, cluster)
    assert await cluster.channels() == {}


async def test_a_deleted_node_leaves_and_a_missing_card_does_not(cluster: Cluster) -> None:
    gone, silent = await cluster.node("a"), await cluster.node("b", address="10.0.0.2")
    controllers = await cluster.controllers()
    await settle(controllers, cluster)
    await cluster.client.delete(NODES, await cluster.client.get(NODES, Key("", gone)))
    await controllers.look()
    controllers.observed.cards.replace([])
    await controllers.partitions.reconcile(cluster.partition)
    states = {m.node: m.state for m in (await cluster.live()).status.members}
    assert states == {gone: MemberState.LEAVING, silent: MemberState.UNKNOWN}


async def test_a_record_that_was_lost_is_made_again_as_it_was(cluster: Cluster) -> None:
    facts = {"state": ImexState.READY, "connected": (1,)}
    node = await cluster.node("a", **facts)
    await cluster.node("b", address="10.0.0.2")
    domain = await cluster.domain("one")
    await cluster.claim(domain, node)
    controllers = await cluster.controllers()
    await settle(controllers, cluster, domain)
    await cluster.card(node, slot=1, applied=41, **facts)
    lost = await cluster.live()
    await cluster.client.patch(NVLINK_PARTITIONS, key_of(lost), {"metadata": {"finalizers": None}})
    await cluster.client.delete(NVLINK_PARTITIONS, lost)
    await settle(await cluster.controllers(), cluster)
    found = await cluster.live()
    assert found.metadata.uid != lost.metadata.uid
    assert {m.node: m.slot for m in found.status.members}[node] == 1
    assert found.status.generation == 42
    assert await cluster.channels() == {1: ("one", "Assigned")}


async def test_a_template_of_somebody_else_is_left_alone_and_said(cluster: Cluster) -> None:
    domain = await cluster.domain("one")
    mine = await template(cluster, "one")
    controllers = await cluster.controllers()
    await controllers.domains.reconcile(key_of(domain))
    condition = find_condition((await cluster.domains())["one"].status.conditions, "Ready")
    assert condition is not None
    name = f"{cluster.namespace}/one"
    assert (condition.status, condition.message) == (
        "False",
        f"ResourceClaimTemplate {name} exists and was not made for ComputeDomain {name}: rename one of them",
    )
    assert (await cluster.client.get(RESOURCE_CLAIM_TEMPLATES, key_of(mine))) == mine


async def template(cluster: Cluster, name: str) -> ResourceClaimTemplate:
    """As somebody else would make one."""
    request = DeviceRequest("gpu", ExactRequest("gpu.nvidia.com"))
    spec = ResourceClaimTemplateSpec(spec=ClaimSpec(ClaimDevices((request,))))
    meta = ObjectMeta(name=name, namespace=cluster.namespace)
    return await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, ResourceClaimTemplate(meta, spec))


@contextlib.asynccontextmanager
async def running(program: Program) -> AsyncIterator[None]:
    task = asyncio.create_task(program.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()


async def eventually(question: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(45):
        while not await question():
            await asyncio.sleep(0.02)


async def test_the_program_makes_a_template_again_and_takes_a_place_that_becomes_free(cluster: Cluster) -> None:
    foreign = await template(cluster, "two")
    await cluster.domain("one")
    await cluster.domain("two")

    async def refused() -> bool:
        conditions = (await cluster.domains())["two"].status.conditions
        return any(condition.reason == "TemplateTaken" for condition in conditions)

    async def ready() -> bool:
        return (await cluster.domains())["two"].status.status == "Ready"

    async with running(Program(cluster.client, "test")):
        await eventually(lambda: cluster.has_template("one"))
        await eventually(refused)
        made = await cluster.client.get(RESOURCE_CLAIM_TEMPLATES, Key(cluster.namespace, "one"))
        for gone in (made, foreign):
            await cluster.client.delete(RESOURCE_CLAIM_TEMPLATES, gone)
        await eventually(lambda: cluster.has_template("one"))
        await eventually(lambda: cluster.has_template("two"))
        await eventually(ready)
        again = await cluster.client.get(RESOURCE_CLAIM_TEMPLATES, Key(cluster.namespace, "one"))
        assert structs.asdict(again.spec) == structs.asdict(made.spec)
