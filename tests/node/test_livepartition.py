"""A grant rests on the partition's record as it is, not as it was watched, and the look at it costs no time."""

import asyncio

import pytest

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import Key, Resource, T
from imex_dra.api.nvlinknode import ImexState
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, ChannelState
from imex_dra.base.errors import Rejected
from imex_dra.dra.plugin import ClaimId
from imex_dra.kube.client import Client
from tests.kube.proxy import Proxy
from tests.kube.waiting import until
from tests.node.facts import daemon
from tests.node.scene import Scene

pytestmark = pytest.mark.kube


class Ending:
    """A prepare that finds nothing to grant waits, and watches its ComputeDomain meanwhile, until that goes."""

    def __init__(self, scene: Scene, client: Client, proxy: Proxy) -> None:
        self.scene, self.client, self.proxy = scene, client, proxy

    async def of(self, claim: ClaimId, domain: ComputeDomain) -> None:
        call = asyncio.create_task(self.scene.preparation(self.client, deadline=300.0).prepare(claim))
        await until(lambda: any("/computedomains" in request for request in self.proxy.requests))
        await self.scene.admin.delete(COMPUTE_DOMAINS, domain)
        async with asyncio.timeout(45):
            with pytest.raises(Rejected, match="has none with this UID"):
                await call
        assert self.scene.desk.held() == self.scene.desk.specs() == {}


@pytest.fixture
def ending(scene: Scene, far_client: Client, proxy: Proxy) -> Ending:
    return Ending(scene, far_client, proxy)


def live_reads(proxy: Proxy) -> int:
    return sum("/nvlinkpartitions/" in request for request in proxy.requests)


class Slow(Client):
    """Reads objects of one kind only when it may; `answered`: all that it has read."""

    def __init__(self, client: Client, kind: str) -> None:
        super().__init__(client._http)
        self.kind, self.may_read, self.answered = kind, asyncio.Event(), 0

    async def get(self, resource: Resource[T], key: Key) -> T:
        if resource.kind == self.kind:
            await self.may_read.wait()
        answer = await super().get(resource, key)
        self.answered += 1
        return answer


async def test_a_computedomain_that_is_new_to_the_node_is_looked_up_live_and_a_known_one_is_not(
    scene: Scene, far_client: Client, proxy: Proxy
) -> None:
    domain = await scene.domain()
    await scene.assign(domain, 7)
    await scene.see_partition()
    await scene.assign(domain, 8)
    first, second = [await scene.claim(domain.metadata.uid) for _ in range(2)]
    await scene.preparation(far_client).prepare(first)
    assert live_reads(proxy) == 1
    assert scene.desk.held() == {first.uid: 8}
    await scene.see_partition()
    await scene.preparation(far_client).prepare(second)
    assert live_reads(proxy) == 1
    assert scene.desk.held() == {first.uid: 8, second.uid: 8}


async def test_a_look_that_came_before_the_assignment_does_not_speak_against_it(scene: Scene) -> None:
    domain = await scene.domain()
    claim = await scene.claim(domain.metadata.uid)
    client = Slow(scene.admin, "ResourceClaim")
    call = asyncio.create_task(scene.preparation(client).prepare(claim))
    await until(lambda: client.answered == 1)
    await scene.assign(domain, 7)
    await scene.see_partition()
    client.may_read.set()
    async with asyncio.timeout(25):
        await call
    assert scene.desk.held() == {claim.uid: 7}
    assert client.answered == 3


async def test_what_was_looked_up_before_a_wait_is_looked_up_again_after_it(scene: Scene) -> None:
    domain = await scene.domain()
    claim = await scene.claim(domain.metadata.uid)
    await scene.assign(domain, 7)
    await scene.see_partition()
    able = scene.situation.known.daemon
    scene.learn(daemon=daemon(ImexState.WAITING_FOR_RECOVERY))
    call = asyncio.create_task(scene.preparation().prepare(claim))
    await until(lambda: scene.situation.looks > 0)
    await scene.assign(domain, 8)
    scene.learn(daemon=able)
    async with asyncio.timeout(25):
        await call
    assert scene.desk.held() == {claim.uid: 8}


async def test_a_look_that_hangs_holds_no_refusal_back(scene: Scene) -> None:
    client = Slow(scene.admin, "NVLinkPartition")
    async with asyncio.timeout(45):
        with pytest.raises(Rejected, match="does not exist any more"):
            await scene.preparation(client, deadline=300.0).prepare(ClaimId(scene.namespace, "gone", "uid-gone"))


async def test_an_assignment_that_is_no_longer_true_is_not_used(ending: Ending, scene: Scene) -> None:
    domain = await scene.domain()
    await scene.assign(domain, 7)
    await scene.see_partition()
    await scene.assign(domain, 7, state=ChannelState.RESTING)
    await ending.of(await scene.claim(domain.metadata.uid), domain)


async def test_a_partition_that_was_deleted_behind_the_watch_gives_no_channel(
    ending: Ending, scene: Scene
) -> None:
    domain = await scene.domain()
    await scene.assign(domain, 7)
    await scene.admin.delete(NVLINK_PARTITIONS, await scene.see_partition())
    await ending.of(await scene.claim(domain.metadata.uid), domain)
