"""The node's ResourceSlice on a real API server: written only when something changes."""

from typing import Any

import pytest
import structlog
from msgspec import structs

from imex_dra.api.meta import OwnerReference
from imex_dra.api.names import DRIVER
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.api.views import RESOURCE_SLICES
from imex_dra.kube.patch import patch_changes
from imex_dra.node.devices import DevicePublisher, resource_slice
from imex_dra.node.grant import MAX_CLAIMS
from imex_dra.node.state import NodeState
from tests.node.publishing_node import PublishingNode, running
from tests.node.snapshots import HEALTHY, OTHER_PARTITION, daemon, reading
from tests.waiting import until_async

pytestmark = pytest.mark.kube


def publisher(node: PublishingNode) -> DevicePublisher:
    return DevicePublisher(node.client, node.state, node.clock)


async def until_published(node: PublishingNode) -> None:
    async def published() -> bool:
        return len(await node.slices()) == 1

    await until_async(published)


async def until_withdrawn(node: PublishingNode) -> None:
    async def withdrawn() -> bool:
        return await node.slices() == []

    await until_async(withdrawn)


async def test_devices_are_published_when_the_node_is_ready_and_withdrawn_when_its_fabric_breaks(
    publishing_node: PublishingNode,
) -> None:
    node = publishing_node
    async with running(publisher(node).run()):
        await node.next_decision()
        assert await node.slices() == []
        node.become_healthy()
        await until_published(node)
        (published,) = await node.slices()
        assert len(published.spec.devices) == MAX_CLAIMS == 16
        assert [owner.kind for owner in published.metadata.owner_references] == ["Node"]
        node.become_healthy(reading=reading(FabricState.BROKEN, "a GPU is gone"))
        await until_withdrawn(node)


async def test_a_slice_that_the_kubelet_deleted_is_created_again(publishing_node: PublishingNode) -> None:
    node = publishing_node
    node.become_healthy()
    async with running(publisher(node).run()):
        await until_published(node)
        (first,) = await node.slices()
        await node.client.delete(RESOURCE_SLICES, first)

        async def created_again() -> bool:
            return [found.metadata.uid for found in await node.slices()] not in ([], [first.metadata.uid])

        await until_async(created_again)


async def test_a_slice_that_lost_its_owner_reference_is_still_updated(publishing_node: PublishingNode) -> None:
    node = publishing_node
    node.become_healthy()
    async with running(publisher(node).run()):
        await until_published(node)
    (published,) = await node.slices()
    spec = structs.replace(published.spec, devices=published.spec.devices[:1])
    meta = structs.replace(published.metadata, owner_references=())
    changed = structs.replace(published, spec=spec, metadata=meta)
    await patch_changes(node.client, RESOURCE_SLICES, published, changed)

    async def complete() -> bool:
        return [len(found.spec.devices) for found in await node.slices()] == [MAX_CLAIMS]

    async with running(publisher(node).run()):
        await until_async(complete)


@pytest.mark.parametrize(
    "interruption",
    [
        {"daemon": daemon(ImexState.UNAVAILABLE)},
        {"reading": reading(FabricState.PENDING)},
        {"watched_partition": None},
    ],
    ids=["daemon not ready", "fabric pending", "no membership"],
)
async def test_devices_stay_unchanged_during_an_interruption_and_are_withdrawn_after_15_s(
    publishing_node: PublishingNode, interruption: dict[str, Any]
) -> None:
    node = publishing_node
    node.become_healthy()
    async with running(publisher(node).run()):
        await until_published(node)
        before = await node.slices()
        node.become_healthy(**interruption)
        for _ in range(3):
            await node.next_decision()
        assert await node.slices() == before
        node.clock.time += 15
        await node.next_decision()
        await until_withdrawn(node)


async def test_a_restarted_publisher_keeps_the_existing_slice_until_it_knows_the_node(
    publishing_node: PublishingNode,
) -> None:
    node = publishing_node
    node.become_healthy()
    async with running(publisher(node).run()):
        await until_published(node)
    before = await node.slices()
    node.state = NodeState(node.name)
    async with running(publisher(node).run()):
        for _ in range(3):
            await node.next_decision()
        assert await node.slices() == before
        node.become_healthy()
        await node.next_decision()
        assert await node.slices() == before


async def test_a_node_that_moves_to_another_partition_publishes_a_new_pool_generation(
    publishing_node: PublishingNode,
) -> None:
    node = publishing_node
    node.become_healthy()
    async with running(publisher(node).run()):
        await until_published(node)
        meta = structs.replace(node.partition.metadata, name=OTHER_PARTITION)
        node.become_healthy(
            reading=structs.replace(HEALTHY.reading, partition=OTHER_PARTITION),
            daemon=daemon(partition=OTHER_PARTITION),
            watched_partition=structs.replace(node.partition, metadata=meta),
        )

        async def has_new_clique() -> bool:
            cliques = [found.spec.devices[0].attributes["clique"].string for found in await node.slices()]
            return cliques == [OTHER_PARTITION]

        await until_async(has_new_clique)
        assert [found.spec.pool.generation for found in await node.slices()] == [2]


async def test_a_rebooted_node_publishes_devices_although_a_member_is_dead(
    publishing_node: PublishingNode,
) -> None:
    """The dead member still counts as Ready: its Node is not NotReady yet."""
    node = publishing_node
    node.become_healthy(daemon=daemon(connected=()))
    async with running(publisher(node).run()):
        await node.next_decision()
        node.clock.time += 29
        await node.next_decision()
        assert await node.slices() == []
        node.clock.time += 1
        await node.next_decision()
        await until_published(node)


async def test_a_slice_of_the_same_name_that_the_watch_does_not_show_is_waited_for(
    publishing_node: PublishingNode,
) -> None:
    """For example one of another driver. No event would come when it is deleted."""
    node = publishing_node
    node.become_healthy()
    owner = OwnerReference("v1", "Node", node.name, "uid-node")
    taken = resource_slice(node.state.snapshot, owner)
    taken = structs.replace(taken, spec=structs.replace(taken.spec, driver="another.example"))
    taken = await node.client.create(RESOURCE_SLICES, taken)
    with structlog.testing.capture_logs() as logs:
        async with running(publisher(node).run()):
            await until_async(lambda: any("cannot write the ResourceSlice" in entry["event"] for entry in logs))
            await node.client.delete(RESOURCE_SLICES, taken)

            async def ours() -> bool:
                return [found.spec.driver for found in await node.slices()] == [DRIVER]

            await until_async(ours)
