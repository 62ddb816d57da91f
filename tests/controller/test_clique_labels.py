"""The clique label of Nodes on a real API server: ours, unless somebody else set it."""

import asyncio
from typing import Any

import pytest

from imex_dra.api.meta import Key
from imex_dra.api.names import CLIQUE_LABEL, PartitionId
from imex_dra.api.nvlinkpartition import CLIQUE_LABELS
from imex_dra.api.views import EVENTS, NODES
from imex_dra.base.clock import Clock
from imex_dra.base.errors import Conflict
from imex_dra.controller.cliquelabels import CliqueLabelReconciler, owner_in
from imex_dra.kube.client import APPLY_PATCH, Selection
from imex_dra.kube.events import EventRecorder
from tests.controller.cluster import Cluster, Reconcilers

pytestmark = pytest.mark.kube

OTHER = "00000000-0000-0000-0000-000000000000.9"


class LabelFixture:
    def __init__(self, cluster: Cluster, reconcilers: Reconcilers) -> None:
        self.cluster, self.reconcilers, self.client = cluster, reconcilers, cluster.client
        self.events = EventRecorder(self.client, "test", Clock())
        self.labels = CliqueLabelReconciler(self.client, reconcilers.caches, self.events, Clock())

    async def reconcile(self, *nodes: str) -> list[float | None]:
        await self.reconcilers.sync()
        return [await self.labels.reconcile(Key("", node)) for node in nodes]

    async def label(self, node: str) -> str:
        return (await self.client.get(NODES, Key("", node))).metadata.labels.get(CLIQUE_LABEL, "")

    async def set_label(self, node: str, value: str | None, manager: str = "gpu-feature-discovery") -> None:
        await self.client.patch(
            NODES, Key("", node), {"metadata": {"labels": {CLIQUE_LABEL: value}}}, fieldManager=manager
        )

    async def condition(self) -> tuple[str, str]:
        return (await self.cluster.partition_conditions()).get(CLIQUE_LABELS, ("", ""))


@pytest.fixture
async def fixture(cluster: Cluster) -> LabelFixture:
    return LabelFixture(cluster, await cluster.reconcilers())


async def partition_of(fixture: LabelFixture, *nodes: str) -> list[str]:
    """Nodes whose partition exists."""
    names = [await fixture.cluster.create_node(node) for node in nodes]
    await fixture.cluster.settle(fixture.reconcilers)
    return names


async def test_a_label_that_nobody_set_is_set_and_follows_the_node(fixture: LabelFixture) -> None:
    (node,) = await partition_of(fixture, "a")
    await fixture.reconcile(node)
    assert await fixture.label(node) == fixture.cluster.partition
    await fixture.cluster.report(node, partition=OTHER)
    await fixture.reconcile(node)
    assert await fixture.label(node) == OTHER
    assert await fixture.condition() == ("", "")


@pytest.mark.parametrize("after_ours", [False, True], ids=["before ours", "over ours"])
async def test_a_label_that_somebody_else_set_stays_and_the_difference_is_reported(
    fixture: LabelFixture, after_ours: bool
) -> None:
    node, other = await partition_of(fixture, "a", "b")
    if after_ours:
        await fixture.reconcile(node, other)
    await fixture.set_label(node, OTHER)
    await fixture.reconcile(node, other)
    assert await fixture.label(node) == OTHER
    assert await fixture.label(other) == fixture.cluster.partition
    status, message = await fixture.condition()
    assert status == "False"
    assert f"of node {node} is {OTHER}, set by gpu-feature-discovery" in message
    assert f"its GPUs report {fixture.cluster.partition}" in message
    writing = asyncio.create_task(fixture.events.run())
    await fixture.events.flush()
    writing.cancel()
    await asyncio.wait({writing})
    recorded = await fixture.client.list(EVENTS, Selection("default", fields="reason=CliqueLabelDiffers"))
    assert node in {event.regarding.name for event in recorded}


async def test_the_condition_becomes_true_when_the_label_is_removed_or_corrected(fixture: LabelFixture) -> None:
    node, corrected = await partition_of(fixture, "a", "b")
    for name in (node, corrected):
        await fixture.set_label(name, OTHER)
    await fixture.reconcile(node, corrected)
    assert "(and 1 more)" in (await fixture.condition())[1]
    await fixture.set_label(node, None)
    await fixture.set_label(corrected, fixture.cluster.partition)
    await fixture.reconcile(node, corrected)
    assert (await fixture.condition())[0] == "True"
    assert await fixture.label(node) == fixture.cluster.partition


async def test_the_condition_ends_when_the_node_leaves_the_partition(fixture: LabelFixture) -> None:
    node, _ = await partition_of(fixture, "a", "b")
    await fixture.set_label(node, OTHER)
    await fixture.reconcile(node)
    assert (await fixture.condition())[0] == "False"
    await fixture.cluster.report(node, partition=OTHER)
    await fixture.reconcile(node)
    assert (await fixture.condition())[0] == "True"


async def test_a_new_leader_keeps_the_condition_before_it_knows_the_owner(
    fixture: LabelFixture, cluster: Cluster
) -> None:
    node, other = await partition_of(fixture, "a", "b")
    await fixture.set_label(node, OTHER)
    await fixture.reconcile(node)
    successor = LabelFixture(cluster, await cluster.reconcilers())
    await successor.reconcile(other)
    assert (await successor.condition())[0] == "False"


async def test_a_difference_is_reported_when_the_partition_appears(fixture: LabelFixture) -> None:
    node = await fixture.cluster.create_node("a")
    await fixture.set_label(node, OTHER)
    (again,) = await fixture.reconcile(node)
    assert again is not None
    await fixture.cluster.settle(fixture.reconcilers)
    assert await fixture.reconcile(node) == [None]
    assert (await fixture.condition())[0] == "False"


async def test_the_owner_is_read_from_the_api_servers_own_words(fixture: LabelFixture) -> None:
    (node,) = await partition_of(fixture, "a")
    await fixture.set_label(node, OTHER, manager="kubectl-label")
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node, "labels": {CLIQUE_LABEL: PartitionId("x.1")}},
    }
    with pytest.raises(Conflict) as refused:
        await fixture.client.patch(NODES, Key("", node), body, content_type=APPLY_PATCH, fieldManager="ours")
    assert owner_in(refused.value) == "kubectl-label"
    assert owner_in(Conflict("the object has been modified")) is None
