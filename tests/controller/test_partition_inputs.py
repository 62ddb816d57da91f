"""What the plan of a partition is made from: the objects that concern it, found by indexes."""

from msgspec import structs

from bench.statuspass import MemoryClient
from imex_dra.api.computedomain import COMPUTE_DOMAINS, AllocationMode, ComputeDomain, DomainPartition
from imex_dra.api.meta import ObjectMeta
from imex_dra.api.nvlinknode import HeldChannel
from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, DomainReference
from imex_dra.api.views import Node
from imex_dra.base.clock import Clock
from imex_dra.controller.caches import Caches
from imex_dra.controller.nvlinkpartitions import NVLinkPartitionReconciler
from imex_dra.controller.partitionplan import PartitionInputs
from imex_dra.kube.events import EventRecorder
from tests.controller.claims import domain
from tests.controller.partition import HERE, member, nvlink_node, partition


async def inputs(caches: Caches, client: MemoryClient) -> PartitionInputs:
    events = EventRecorder(client, "test", Clock())
    (found,) = caches.partitions.values()
    return await NVLinkPartitionReconciler(client, caches, events, Clock()).inputs(HERE, found, set())


def listing(name: str) -> ComputeDomain:
    found = domain(name)
    return structs.replace(found, status=structs.replace(found.status, partitions=(DomainPartition(HERE, 1),)))


async def test_the_evidence_of_a_recovery_is_what_lists_a_channel_and_what_nodes_hold() -> None:
    caches, client = Caches(), MemoryClient()
    for found in (listing("lists"), listing("deleted"), domain("held"), domain("unrelated")):
        caches.compute_domains.upsert(found)
    client.add(COMPUTE_DOMAINS, listing("lists"))
    caches.nodes.upsert(Node(ObjectMeta(name="a", uid="a")))
    caches.nvlink_nodes.upsert(nvlink_node("a", acknowledged=9, held=(HeldChannel(HERE, 2, "uid-held"),)))
    caches.partitions.upsert(partition(member("a", 0)))
    # The one that was deleted is still in the cache; a live read shows that it is gone.
    assert {d.metadata.name for d in (await inputs(caches, client)).domains} == {"lists", "held"}


async def test_a_partition_that_does_not_recover_needs_no_evidence() -> None:
    caches = Caches()
    caches.compute_domains.upsert(listing("lists"))
    found = partition(member("a", 0))
    caches.partitions.upsert(structs.replace(found, status=structs.replace(found.status, epoch=1)))
    assert (await inputs(caches, MemoryClient())).domains == ()


async def test_only_refused_computedomains_with_a_channel_here_are_named() -> None:
    caches = Caches()
    refused = [domain(name, template="t", mode=AllocationMode.ALL) for name in ("here", "released", "elsewhere")]
    for found in refused:
        caches.compute_domains.upsert(found)
    channels = [
        ChannelAssignment(number, state, DomainReference("team", name, f"uid-{name}"), "")
        for number, (name, state) in enumerate(
            (("here", ChannelState.ASSIGNED), ("released", ChannelState.RELEASED)), start=1
        )
    ]
    caches.partitions.upsert(partition(member("a", 0), channels=(*channels,)))
    assert (await inputs(caches, MemoryClient())).refused_domains == {"uid-here"}
