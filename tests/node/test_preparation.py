"""Preparing claims of a real API server: what is answered, what is waited for, what is written down."""

import asyncio

import pytest
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.base.errors import NotYet, Rejected
from imex_dra.dra.plugin import PreparedDevice
from imex_dra.hardware.protocol import Reading
from imex_dra.kube.client import Client
from tests.kube.proxy import Proxy
from tests.kube.waiting import until
from tests.node.facts import daemon, reading
from tests.node.prepared import prepared
from tests.node.scene import Scene

pytestmark = pytest.mark.kube


def asked_for_domains(proxy: Proxy) -> bool:
    return any("/computedomains" in request for request in proxy.requests)


async def test_a_claim_whose_channel_is_assigned_is_prepared_at_once(scene: Scene) -> None:
    domain = await scene.domain()
    await scene.assign(domain, 7)
    await scene.see_partition()
    claim = await scene.claim(domain.metadata.uid)
    answer = await scene.preparation().prepare(claim)
    assert answer == (PreparedDevice("channel", "n1", "channel-3", (f"imex-dra.io/channel={claim.uid}",)),)
    assert scene.desk.held() == scene.desk.specs() == {claim.uid: 7}
    assert scene.desk.stored().claims[claim.uid].domain_name == "job"


async def test_a_prepare_waits_for_every_condition_and_is_woken_by_the_last(
    scene: Scene, far_client: Client, proxy: Proxy
) -> None:
    domain = await scene.domain()
    claim = await scene.claim(domain.metadata.uid)
    able, at_the_end = scene.situation.known, []
    scene.learn(reading=reading(FabricState.PENDING), daemon=daemon(ImexState.UNAVAILABLE), partition=None)
    call = asyncio.create_task(scene.preparation(far_client).prepare(claim))
    call.add_done_callback(lambda _: at_the_end.append(scene.situation.known))
    await until(lambda: asked_for_domains(proxy))
    await scene.assign(domain, 9)
    scene.learn(reading=able.reading)
    assigned = await scene.see_partition()
    await scene.see_partition()
    scene.learn(daemon=able.daemon)
    async with asyncio.timeout(45):
        await call
    assert [(known.reading, known.daemon, known.partition) for known in at_the_end] == [
        (able.reading, able.daemon, assigned)
    ]
    assert scene.desk.specs() == {claim.uid: 9}


async def test_nothing_is_entered_while_the_node_s_boot_id_is_unknown(scene: Scene) -> None:
    """It would never count as held: whose processes live is told by it."""
    domain = await scene.domain()
    await scene.assign(domain, 7)
    await scene.see_partition()
    claim = await scene.claim(domain.metadata.uid)
    scene.learn(reading=structs.replace(scene.situation.known.reading, boot_id=""))
    with pytest.raises(NotYet, match="since when it runs"):
        await scene.preparation().prepare(claim)
    assert scene.desk.held() == scene.desk.specs() == {}


async def test_on_a_node_without_fabric_the_claim_is_prepared_without_a_channel(scene: Scene) -> None:
    domain = await scene.domain()
    claim = await scene.claim(domain.metadata.uid)
    scene.learn(reading=reading(FabricState.NONE), daemon=daemon(ImexState.UNAVAILABLE), partition=None)
    await scene.preparation().prepare(claim)
    assert scene.desk.specs() == {claim.uid: -1}


async def test_a_channel_that_another_computedomain_still_holds_here_is_not_given(scene: Scene) -> None:
    domain = await scene.domain()
    await scene.assign(domain, 7)
    await scene.see_partition()
    scene.desk.enter(prepared("old", channel=7, domain="before", partition=scene.partition), since=0)
    claim = await scene.claim(domain.metadata.uid)
    with pytest.raises(NotYet, match=r"channel 7 of NVLink partition .* is still held on node n1 by claim team/"):
        await scene.preparation(deadline=4.0).prepare(claim)
    assert scene.desk.held() == scene.desk.specs() == {"old": 7}


async def test_unpreparing_needs_nothing_but_the_disk(scene: Scene, far_client: Client, proxy: Proxy) -> None:
    domain = await scene.domain()
    await scene.assign(domain, 7)
    await scene.see_partition()
    claim = await scene.claim(domain.metadata.uid)
    await scene.preparation().prepare(claim)
    await scene.forget(claim)
    scene.learn(reading=reading(FabricState.BROKEN), daemon=daemon(ImexState.UNAVAILABLE), partition=None)
    proxy.cut(for_good=True)
    for _ in range(2):
        await scene.preparation(far_client).unprepare(claim)
        assert scene.desk.held() == scene.desk.specs() == {}
    assert proxy.requests == []


async def test_a_claim_prepared_before_is_answered_again_without_the_api_server(
    scene: Scene, far_client: Client, proxy: Proxy
) -> None:
    domain = await scene.domain()
    await scene.assign(domain, 7)
    await scene.see_partition()
    claim = await scene.claim(domain.metadata.uid)
    answer = await scene.preparation().prepare(claim)
    spec = scene.desk.spec(claim.uid)
    scene.desk.root.load_driver(99)
    proxy.cut(for_good=True)
    assert await scene.preparation(far_client).prepare(claim) == answer
    spec["devices"][0]["containerEdits"]["deviceNodes"][0]["major"] = 99
    assert scene.desk.spec(claim.uid) == spec


async def test_a_claim_prepared_before_waits_for_the_first_look_at_the_hardware_and_for_nothing_else(
    scene: Scene, far_client: Client, proxy: Proxy
) -> None:
    domain = await scene.domain()
    await scene.assign(domain, 7)
    seen = await scene.see_partition()
    claim = await scene.claim(domain.metadata.uid)
    answer, able = await scene.preparation().prepare(claim), scene.situation.known
    proxy.cut(for_good=True)
    scene.learn(reading=Reading(), partition=seen)
    call = asyncio.create_task(scene.preparation(far_client).prepare(claim))
    await until(lambda: scene.situation.looks > 0)
    scene.learn(reading=able.reading)
    async with asyncio.timeout(25):
        assert await call == answer
    assert proxy.requests == []


async def test_after_a_reboot_a_claim_is_verified_anew(scene: Scene) -> None:
    domain = await scene.domain()
    await scene.assign(domain, 7)
    await scene.see_partition()
    claim = await scene.claim(domain.metadata.uid)
    old = prepared(claim.uid, channel=3, partition=scene.partition, boot_id="boot-0")
    scene.desk.enter(old, since=0)
    await scene.preparation().prepare(claim)
    assert scene.desk.specs() == {claim.uid: 7}
    assert scene.desk.stored().claims[claim.uid].boot_id == "boot-1"
    scene.desk.enter(old, since=0)
    await scene.admin.delete(COMPUTE_DOMAINS, domain)
    await scene.write_partition()
    await scene.see_partition()
    with pytest.raises(Rejected, match="has none with this UID"):
        await scene.preparation().prepare(claim)


async def test_two_prepares_of_one_claim_at_once_agree(scene: Scene) -> None:
    domain = await scene.domain()
    await scene.assign(domain, 7)
    claim = await scene.claim(domain.metadata.uid)
    preparations = [scene.preparation(), scene.preparation()]
    calls = [asyncio.create_task(preparation.prepare(claim)) for preparation in preparations]
    await scene.see_partition()
    first, second = await asyncio.gather(*calls)
    assert first == second
    assert scene.desk.held() == scene.desk.specs() == {claim.uid: 7}
