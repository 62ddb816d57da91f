"""Decisions that became writes, on a real API server: what one controller did, another can't spoil."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import Key, ObjectMeta, key_of
from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.api.nvlinknode import HeldChannel, ImexState
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, MemberState
from imex_dra.api.views import (
    NODES,
    RESOURCE_CLAIM_TEMPLATES,
    ClaimDevices,
    ClaimSpec,
    DeviceRequest,
    ExactRequest,
    ResourceClaim,
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
    """The controller decides, the nodes answer if they are asked, and the controller decides again."""
    for _ in range(2):
        await controllers.look()
        await controllers.partitions.reconcile(cluster.partition)
        await cluster.answer()
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
    await settle(first, cluster)
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
    await settle(second, cluster)
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
    await controllers.look()
    await controllers.partitions.reconcile(cluster.partition)
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


async def conditions(cluster: Cluster) -> dict[str, tuple[str, str]]:
    found = (await cluster.live()).status.conditions
    return {condition.type: (condition.status, condition.message) for condition in found}


async def end_of(cluster: Cluster, controllers: Controllers, name: str, claim: ResourceClaim) -> None:
    domain = (await cluster.domains())[name]
    await cluster.client.delete(COMPUTE_DOMAINS, domain)
    await cluster.end(claim)
    await settle(controllers, cluster, domain)


async def test_channels_go_round_and_are_used_again_when_the_node_has_let_go(cluster: Cluster) -> None:
    node = await cluster.node("a", channel_count=3)
    controllers = await cluster.controllers()
    await settle(controllers, cluster)
    given = []
    for number in range(5):
        name = f"job-{number}"
        domain = await cluster.domain(name)
        claim = await cluster.claim(domain, node, pod=name)
        for _ in range(2):
            await settle(controllers, cluster, domain)
        given += [channel for channel, (who, state) in (await cluster.channels()).items() if who == name]
        await end_of(cluster, controllers, name, claim)
    assert given == [1, 2, 1, 2, 1]


async def test_a_number_that_a_node_holds_on_to_is_not_given_and_the_partition_says_who(cluster: Cluster) -> None:
    node = await cluster.node("a", channel_count=2)
    controllers = await cluster.controllers()
    first = await cluster.domain("first")
    claim = await cluster.claim(first, node)
    await settle(controllers, cluster, first)
    held = (HeldChannel(cluster.partition, 1, first.metadata.uid),)
    await cluster.card(node, channel_count=2, held=held, answered=1)
    await end_of(cluster, controllers, "first", claim)
    second = await cluster.domain("second")
    await cluster.claim(second, node, pod="other")
    for _ in range(3):
        await settle(controllers, cluster, second)
    assert await cluster.channels() == {1: ("first", "Resting")}
    assert (await conditions(cluster))["ChannelsFree"] == (
        "False",
        f"of the channels that were given back, 1 can't be used again yet: {node} holds channel 1"
        " (delete the pod that uses it)",
    )
    await cluster.card(node, channel_count=2, answered=2)
    await settle(controllers, cluster, second)
    assert await cluster.channels() == {1: ("second", "Assigned")}
    assert (await conditions(cluster))["ChannelsFree"][0] == "True"


async def test_a_node_that_brings_channels_of_another_partition_is_drained_first(cluster: Cluster) -> None:
    await cluster.node("a")
    controllers = await cluster.controllers()
    domain = await cluster.domain("one")
    held = (HeldChannel("another.1", 4, domain.metadata.uid),)
    moved = await cluster.node("b", held=held, address="10.0.0.2")
    await cluster.claim(domain, moved, pod="rank-0")
    await settle(controllers, cluster)
    assert moved not in {m.node for m in (await cluster.live()).status.members}
    status, message = (await conditions(cluster))["NodesAdmitted"]
    assert status == "False"
    assert f"pods {cluster.namespace}/rank-0 (channel 4 of another.1); delete the pods that use them" in message
    await cluster.card(moved, address="10.0.0.2")
    await settle(controllers, cluster)
    assert moved in {m.node for m in (await cluster.live()).status.members}
    assert (await conditions(cluster))["NodesAdmitted"][0] == "True"


async def test_a_record_restored_from_a_backup_is_completed_before_anything_is_given(cluster: Cluster) -> None:
    node, late = await cluster.node("a"), await cluster.node("b", address="10.0.0.2")
    one = await cluster.domain("one")
    controllers = await cluster.controllers()
    await settle(controllers, cluster)
    backup = await cluster.live()
    await cluster.claim(one, node)
    await settle(controllers, cluster, one)
    await cluster.card(node, answered=5, held=(HeldChannel(cluster.partition, 1, one.metadata.uid),))
    restored = {"status": msgspec.to_builtins(backup.status) | {"channels": None, "lastChannel": None}}
    await cluster.client.patch(NVLINK_PARTITIONS, key_of(backup), restored, subresource="status")
    two = await cluster.domain("two")
    await cluster.claim(two, node, pod="other")
    await controllers.look()
    await controllers.partitions.reconcile(cluster.partition)
    assert await cluster.channels() == {1: ("one", "Assigned")}
    assert set((await cluster.live()).status.awaited) == {node, late}
    assert (await cluster.live()).status.recall == 5 + 2
    assert (await conditions(cluster))["ChannelsFree"][0] == "False"
    for _ in range(2):
        await settle(controllers, cluster)
    assert {m.node for m in (await cluster.live()).status.members} == {node, late}
    assert await cluster.channels() == {1: ("one", "Assigned"), 2: ("two", "Assigned")}


async def test_a_record_that_was_lost_is_made_again_as_it_was(cluster: Cluster) -> None:
    facts = {"state": ImexState.READY, "connected": (1,)}
    node = await cluster.node("a", **facts)
    await cluster.node("b", address="10.0.0.2")
    domain = await cluster.domain("one")
    await cluster.claim(domain, node)
    controllers = await cluster.controllers()
    await settle(controllers, cluster, domain)
    await cluster.card(node, slot=1, applied=41, **facts)
    await cluster.answer()
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


async def test_the_program_puts_a_clique_label_back_that_somebody_took_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imex_dra.controller.program._LABEL_REST", 0.1)
    node = Key("", await cluster.node("a"))

    async def labelled() -> bool:
        labels = (await cluster.client.get(NODES, node)).metadata.labels
        return labels.get(CLIQUE_LABEL) == cluster.partition

    async with running(Program(cluster.client, "test")):
        await eventually(labelled)
        await cluster.client.patch(NODES, node, {"metadata": {"labels": {CLIQUE_LABEL: None}}})
        await eventually(labelled)
