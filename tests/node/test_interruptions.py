"""What comes between a prepare and its end: an unprepare, a kubelet that hangs up, an API server that is gone."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import key_of
from imex_dra.api.nvlinknode import ImexState
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS
from imex_dra.base.errors import NotYet, Rejected
from imex_dra.dra.plugin import ClaimId
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.patch import patch_changes
from tests.kube.proxy import Proxy
from tests.kube.waiting import until
from tests.node.facts import daemon
from tests.node.scene import HandClock, Scene

pytestmark = pytest.mark.kube


class Waiting:
    """A prepare that has read its claim and waits for the daemon; all else is there."""

    def __init__(self, scene: Scene, client: Client) -> None:
        self.scene, self.client = scene, client
        self.able = scene.situation.known.daemon
        self.clock = HandClock()

    async def begin(self) -> tuple[ClaimId, "asyncio.Task[Any]"]:
        scene = self.scene
        domain = await scene.domain()
        claim = await scene.claim(domain.metadata.uid)
        await scene.assign(domain, 7)
        await scene.see_partition()
        scene.learn(daemon=daemon(ImexState.WAITING_FOR_RECOVERY))
        preparation = scene.preparation(self.client, deadline=40.0, clock=self.clock)
        call = asyncio.create_task(preparation.prepare(claim))
        await until(lambda: scene.situation.looks > 0)
        return claim, call

    def go_on(self) -> None:
        self.scene.learn(daemon=self.able)


@pytest.fixture
def waiting(scene: Scene, far_client: Client) -> Waiting:
    return Waiting(scene, far_client)


async def test_a_prepare_overtaken_by_an_unprepare_commits_nothing(waiting: Waiting, scene: Scene) -> None:
    claim, call = await waiting.begin()
    await scene.preparation().unprepare(claim)
    waiting.go_on()
    with pytest.raises(NotYet) as refused:
        await call
    assert str(refused.value) == (
        f"preparing claim {claim} was overtaken by its unprepare; the kubelet asks again if needed"
    )
    assert scene.desk.held() == scene.desk.specs() == {}


async def test_the_same_claim_may_be_prepared_again_after_that(waiting: Waiting, scene: Scene) -> None:
    claim, call = await waiting.begin()
    await scene.preparation().unprepare(claim)
    waiting.go_on()
    await asyncio.wait({call})
    assert isinstance(call.exception(), NotYet)
    await scene.preparation().prepare(claim)
    assert scene.desk.held() == scene.desk.specs() == {claim.uid: 7}


async def test_an_unprepare_of_another_claim_overtakes_nobody(waiting: Waiting, scene: Scene) -> None:
    claim, call = await waiting.begin()
    await scene.preparation().unprepare(ClaimId(claim.namespace, "another", "uid-another"))
    waiting.go_on()
    await call
    assert scene.desk.held() == {claim.uid: 7}


async def test_a_wait_ends_at_once_when_its_computedomain_is_deleted(waiting: Waiting, scene: Scene) -> None:
    claim, call = await waiting.begin()
    (domain,) = await scene.admin.list(COMPUTE_DOMAINS, Selection(scene.namespace))
    await scene.admin.delete(COMPUTE_DOMAINS, domain)
    async with asyncio.timeout(45):
        with pytest.raises(Rejected, match=f"claim {claim} asks for ComputeDomain .* has none with this UID"):
            await call
    assert scene.desk.held() == scene.desk.specs() == {}


async def test_a_wait_ends_at_once_when_its_computedomain_is_about_to_go(waiting: Waiting, scene: Scene) -> None:
    _, call = await waiting.begin()
    (domain,) = await scene.admin.list(COMPUTE_DOMAINS, Selection(scene.namespace))
    held = structs.replace(domain, metadata=structs.replace(domain.metadata, finalizers=("test.example/held",)))
    held = await patch_changes(scene.admin, COMPUTE_DOMAINS, domain, held)
    await scene.admin.delete(COMPUTE_DOMAINS, held)
    async with asyncio.timeout(45):
        with pytest.raises(Rejected, match=f"ComputeDomain {scene.namespace}/job is being deleted"):
            await call
    await scene.admin.patch(COMPUTE_DOMAINS, key_of(held), {"metadata": {"finalizers": None}})


async def test_a_computedomain_that_went_before_the_wait_began_is_noticed_too(scene: Scene) -> None:
    domain = await scene.domain()
    claim = await scene.claim(domain.metadata.uid)
    await scene.assign(domain, 7)
    await scene.see_partition()
    scene.learn(daemon=daemon(ImexState.WAITING_FOR_RECOVERY))
    await scene.admin.delete(COMPUTE_DOMAINS, domain)
    async with asyncio.timeout(45):
        with pytest.raises(Rejected, match="has none with this UID"):
            await scene.preparation(deadline=300.0).prepare(claim)


async def test_a_grant_that_was_recalled_on_its_way_is_asked_for_anew(waiting: Waiting, scene: Scene) -> None:
    claim, call = await waiting.begin()
    scene.desk.ledger().promise(scene.partition, 3)
    waiting.go_on()
    await until(lambda: scene.situation.looks > 2)
    assert not call.done()
    assert scene.desk.held() == {}
    live = await scene.see_partition()
    renewed = structs.replace(live, status=structs.replace(live.status, recall=3))
    await patch_changes(scene.admin, NVLINK_PARTITIONS, live, renewed, subresource="status")
    await scene.see_partition()
    async with asyncio.timeout(45):
        await call
    assert scene.desk.held() == {claim.uid: 7}


async def test_a_call_that_the_kubelet_gave_up_commits_nothing(waiting: Waiting, scene: Scene) -> None:
    _, call = await waiting.begin()
    call.cancel()
    waiting.go_on()
    with suppress(asyncio.CancelledError):
        await call
    assert call.cancelled()
    assert scene.desk.held() == scene.desk.specs() == {}


async def test_an_api_server_that_is_gone_is_named_and_nothing_is_prepared(
    scene: Scene, far_client: Client, proxy: Proxy
) -> None:
    claim = await scene.claim("uid-job")
    proxy.cut(for_good=True)
    with pytest.raises(NotYet) as refused:
        await scene.preparation(far_client).prepare(claim)
    words = str(refused.value)
    assert words.startswith(
        f"node n1 can't reach the API server to prepare claim {claim}: GET /apis/resource.k8s.io"
    )
    assert "no answer from 127.0.0.1" in words
    assert scene.desk.held() == scene.desk.specs() == {}


async def test_an_api_server_that_says_nothing_is_given_up_in_time(
    scene: Scene, far_client: Client, proxy: Proxy
) -> None:
    claim = await scene.claim("uid-job")
    proxy.hang()
    with pytest.raises(NotYet) as refused:
        await scene.preparation(far_client, deadline=0.5).prepare(claim)
    assert str(refused.value) == f"node n1 can't reach the API server to prepare claim {claim}: no answer in time"


async def test_an_api_server_that_fails_for_a_moment_is_asked_again(
    scene: Scene, far_client: Client, proxy: Proxy
) -> None:
    domain = await scene.domain()
    await scene.assign(domain, 7)
    await scene.see_partition()
    claim = await scene.claim(domain.metadata.uid)
    proxy.answer(503, times=2)
    await scene.preparation(far_client).prepare(claim)
    assert scene.desk.held() == {claim.uid: 7}


async def test_all_that_a_prepare_waits_for_fits_into_one_deadline(waiting: Waiting, proxy: Proxy) -> None:
    """The kubelet's limit is for the whole call, however many things it waits for one after the other."""
    _, call = await waiting.begin()
    waiting.clock.time = 39.5
    proxy.hang()
    waiting.go_on()
    async with asyncio.timeout(45):
        with pytest.raises(NotYet, match="no answer in time"):
            await call
