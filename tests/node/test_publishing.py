"""The node's slice and card on a real API server: written when something changes, and only then."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.meta import Key, ObjectMeta
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import NVLINK_NODES, FabricState, ImexState, NVLinkNode
from imex_dra.api.views import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Node, ResourceSlice
from imex_dra.base.clock import SystemClock
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.patch import patch_changes
from imex_dra.node.cards import CardPublisher
from imex_dra.node.situation import Situation
from imex_dra.node.slices import SlicePublisher
from imex_dra.node.sweep import sweep_for_ever
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.proxy import Proxy
from tests.node.desk import Desk
from tests.node.facts import HEALTHY, daemon, reading
from tests.node.prepared import prepared
from tests.node.scene import Scene

pytestmark = pytest.mark.kube

OTHER = PartitionId("7b968a6d.2")


class CountingClock(SystemClock):
    """A publisher looks at it once each time it decides."""

    def __init__(self) -> None:
        self.looks, self.time = 0, 1000.0

    def monotonic(self) -> float:
        self.looks += 1
        return self.time


class Publisher:
    def __init__(self, client: Client) -> None:
        self.client, self.clock = client, CountingClock()
        self.name = f"node-{uuid.uuid4().hex[:8]}"
        self.situation = Situation(self.name)
        self.facts = structs.asdict(HEALTHY) | {"node": self.name}
        del self.facts["place"]  # follows from the reading
        member, *others = HEALTHY.partition.status.members if HEALTHY.partition else ()
        status = structs.replace(
            self.facts["partition"].status, members=(structs.replace(member, node=self.name), *others)
        )
        self.facts["partition"] = structs.replace(self.facts["partition"], status=status)

    async def create_node(self) -> Node:
        return await self.client.create(NODES, Node(ObjectMeta(name=self.name)))

    def know(self, **facts: Any) -> None:
        """Everything is well, but for these facts."""
        self.situation.learn(**self.facts | facts)

    async def slices(self) -> list[ResourceSlice]:
        return await self.client.list(RESOURCE_SLICES, Selection(fields=f"spec.nodeName={self.name}"))

    async def decided(self) -> None:
        """It has decided at least once on what it knows now."""
        looks = self.clock.looks
        self.situation.learn(daemon=structs.replace(self.situation.known.daemon, generation=looks + 100))
        async with asyncio.timeout(45):
            while self.clock.looks == looks:
                await asyncio.sleep(0.01)


async def eventually(question: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(45):
        while not await question():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()


@pytest.fixture
async def publisher(control_plane: ControlPlane) -> AsyncIterator[Publisher]:
    client = Client.connect("imex-node", control_plane.kubeconfig())
    made = Publisher(client)
    await made.create_node()
    yield made
    await client.close()


def slices_of(publisher: Publisher) -> SlicePublisher:
    return SlicePublisher(publisher.client, publisher.situation, publisher.clock)


async def test_seats_appear_when_the_node_is_able_and_vanish_when_its_fabric_breaks(publisher: Publisher) -> None:
    async with running(slices_of(publisher).run()):
        await publisher.decided()
        assert await publisher.slices() == []
        publisher.know()
        await eventually(lambda: offered(publisher))
        (offer,) = await publisher.slices()
        assert len(offer.spec.devices) == 16
        assert [owner.kind for owner in offer.metadata.owner_references] == ["Node"]
        publisher.know(reading=reading(FabricState.BROKEN, "a GPU is gone"))
        await eventually(lambda: withdrawn(publisher))


async def test_seats_that_the_kubelet_deleted_are_made_again(publisher: Publisher) -> None:
    publisher.know()
    async with running(slices_of(publisher).run()):
        await eventually(lambda: offered(publisher))
        (first,) = await publisher.slices()
        await publisher.client.delete(RESOURCE_SLICES, first)

        async def made_again() -> bool:
            return [s.metadata.uid for s in await publisher.slices()] not in ([], [first.metadata.uid])

        await eventually(made_again)


async def test_a_slice_whose_owner_somebody_took_away_is_kept_up_to_date(publisher: Publisher) -> None:
    publisher.know()
    async with running(slices_of(publisher).run()):
        await eventually(lambda: offered(publisher))
    (offer,) = await publisher.slices()
    spec = structs.replace(offer.spec, devices=offer.spec.devices[:1])
    bare = structs.replace(offer, spec=spec, metadata=structs.replace(offer.metadata, owner_references=()))
    await patch_changes(publisher.client, RESOURCE_SLICES, offer, bare)

    async def complete() -> bool:
        return [len(s.spec.devices) for s in await publisher.slices()] == [len(offer.spec.devices)]

    async with running(slices_of(publisher).run()):
        await eventually(complete)


@pytest.mark.parametrize(
    "doubt",
    [{"daemon": daemon(ImexState.UNAVAILABLE)}, {"reading": reading(FabricState.PENDING)}, {"partition": None}],
    ids=["the daemon blinks", "the fabric blinks", "the membership is not seen"],
)
async def test_seats_stay_as_they_are_while_the_node_is_in_doubt_and_go_after_15_s(
    publisher: Publisher, doubt: dict[str, Any]
) -> None:
    publisher.know()
    async with running(slices_of(publisher).run()):
        await eventually(lambda: offered(publisher))
        before = await publisher.slices()
        publisher.know(**doubt)
        for _ in range(3):
            await publisher.decided()
        assert await publisher.slices() == before
        publisher.clock.time += 15
        await publisher.decided()
        await eventually(lambda: withdrawn(publisher))


async def test_a_restarted_publisher_leaves_the_seats_it_finds_until_it_knows_better(publisher: Publisher) -> None:
    publisher.know()
    async with running(slices_of(publisher).run()):
        await eventually(lambda: offered(publisher))
    before = await publisher.slices()
    publisher.situation = Situation(publisher.name)
    async with running(slices_of(publisher).run()):
        for _ in range(3):
            await publisher.decided()
        assert await publisher.slices() == before
        publisher.know()
        await publisher.decided()
        assert await publisher.slices() == before


async def test_a_node_in_another_partition_says_so_in_a_new_generation(publisher: Publisher) -> None:
    publisher.know()
    async with running(slices_of(publisher).run()):
        await eventually(lambda: offered(publisher))
        moved = publisher.facts["partition"]
        publisher.know(
            reading=structs.replace(HEALTHY.reading, partition=OTHER),
            daemon=daemon(partition=OTHER),
            partition=structs.replace(moved, metadata=structs.replace(moved.metadata, name=OTHER)),
        )

        async def clique_is_new() -> bool:
            return [s.spec.devices[0].attributes["clique"].string for s in await publisher.slices()] == [OTHER]

        await eventually(clique_is_new)
        assert [s.spec.pool.generation for s in await publisher.slices()] == [2]


async def offered(publisher: Publisher) -> bool:
    return len(await publisher.slices()) == 1


async def withdrawn(publisher: Publisher) -> bool:
    return await publisher.slices() == []


async def test_a_card_is_made_for_its_node_and_follows_it(publisher: Publisher, desk: Desk) -> None:
    cards = CardPublisher(publisher.client, publisher.situation, desk.ledger(), address="10.0.0.1")

    async def card() -> NVLinkNode:
        return await publisher.client.get(NVLINK_NODES, Key("", publisher.name))

    async def state() -> str:
        found = await publisher.client.list(NVLINK_NODES, Selection(fields=f"metadata.name={publisher.name}"))
        return found[0].status.imex_state if found else ""

    async with running(cards.run()):
        publisher.know()
        await eventually(lambda: is_equal(state, "READY"))
        written = await card()
        assert [owner.name for owner in written.metadata.owner_references] == [publisher.name]
        assert written.status.problem == ""
        publisher.know(daemon=daemon(ImexState.INIT_GPU))
        await eventually(lambda: is_equal(state, "INIT_GPU"))
        await publisher.client.delete(NVLINK_NODES, await card())
        publisher.know()
        await eventually(lambda: is_equal(state, "READY"))


async def test_a_program_that_starts_says_nothing_before_it_has_looked(publisher: Publisher, desk: Desk) -> None:
    """What the one before it wrote stands until then: a partition must not blink at every update."""
    ledger = desk.ledger()

    async def state() -> str:
        found = await publisher.client.list(NVLINK_NODES, Selection(fields=f"metadata.name={publisher.name}"))
        return found[0].status.imex_state if found else ""

    async with running(CardPublisher(publisher.client, publisher.situation, ledger, address="10.0.0.1").run()):
        publisher.know()
        await eventually(lambda: is_equal(state, "READY"))
    starting = Situation(publisher.name)
    cards = CardPublisher(publisher.client, starting, ledger, address="10.0.0.1", patience=100)
    async with running(cards.run()):
        assert {await state() for _ in range(20)} == {"READY"}
        starting.learn(reading=HEALTHY.reading, daemon=daemon(ImexState.INIT_GPU))
        await eventually(lambda: is_equal(state, "INIT_GPU"))


async def is_equal(question: Callable[[], Coroutine[Any, Any, str]], expected: str) -> bool:
    return await question() == expected


async def test_the_sweep_unprepares_what_is_gone_or_made_anew_and_nothing_else(scene: Scene) -> None:
    here, remade = await scene.claim("uid-job"), await scene.claim("uid-job")
    gone = (("uid-before", remade.name), ("uid-gone", "gone"), ("uid-living", "the-kubelet-has-it"))
    for uid, name in ((here.uid, here.name), *gone):
        claim = structs.replace(prepared(uid), namespace=scene.namespace, name=name)
        scene.desk.enter(claim, since=0)

    async def swept() -> bool:
        return scene.desk.held().keys() == scene.desk.specs().keys() == {here.uid, "uid-living"}

    record = scene.desk.checkpoint.parent / "dra_manager_state"
    record.write_text('{"Data":"{\\"ClaimUID\\":\\"uid-living\\"}"}')
    async with running(sweep_for_ever(scene.admin, scene.situation, scene.desk.ledger(), record, period=0.05)):
        await eventually(swept)


async def test_the_sweep_concludes_nothing_from_silence(scene: Scene, far_client: Client, proxy: Proxy) -> None:
    scene.desk.enter(structs.replace(prepared("c1"), namespace=scene.namespace), since=0)
    proxy.answer(503, times=8)

    async def asked_often() -> bool:
        return len([r for r in proxy.requests if RESOURCE_CLAIMS.plural in r]) >= 8

    record = scene.desk.checkpoint.parent / "dra_manager_state"
    async with running(sweep_for_ever(far_client, scene.situation, scene.desk.ledger(), record, period=0.01)):
        await eventually(asked_often)
        proxy.hang()
    assert scene.desk.held() == {"c1": 7}
