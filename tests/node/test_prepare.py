"""Preparing and unpreparing claims against a real API server."""

import asyncio

import pytest
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.base.errors import NotYet, Rejected
from imex_dra.dra.plugin import PreparedDevice
from imex_dra.hardware.protocol import Reading
from imex_dra.kube.client import Client
from tests.kube.faultproxy import FaultProxy
from tests.node.disk import prepared_claim
from tests.node.prepare_fixture import PrepareFixture
from tests.node.snapshots import daemon, member, reading
from tests.waiting import until_async

pytestmark = pytest.mark.kube

WAIT_FOR_PEERS = {"imex-dra.io/readiness": "members"}


async def test_a_claim_whose_channel_is_assigned_is_prepared_at_once(fixture: PrepareFixture) -> None:
    _, claim = await fixture.create_claim_with_channel(7)
    answer = await fixture.preparer().prepare(claim)
    assert answer == (PreparedDevice("channel", "n1", "channel-3", (f"imex-dra.io/channel={claim.uid}",)),)
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {claim.uid: 7}
    assert fixture.disk.load_checkpoint().claims[claim.uid].domain_name == "job"


async def test_a_prepare_waits_for_every_condition_and_ends_with_the_last_one(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    domain = await fixture.create_domain()
    claim = await fixture.create_claim(domain.metadata.uid)
    ready, at_the_end = fixture.state.snapshot, []
    fixture.update(
        reading=reading(FabricState.PENDING), daemon=daemon(ImexState.UNAVAILABLE), watched_partition=None
    )
    call = asyncio.create_task(fixture.preparer(proxied_client).prepare(claim))
    call.add_done_callback(lambda _: at_the_end.append(fixture.state.snapshot))
    await until_async(lambda: any("/computedomains" in request for request in proxy.requests))
    await fixture.assign_channel(domain, 9)
    fixture.update(reading=ready.reading)
    partition = await fixture.deliver_partition()
    await fixture.deliver_partition()  # changes nothing, but a prepare that does not wait would complete meanwhile
    fixture.update(daemon=ready.daemon)
    async with asyncio.timeout(45):
        await call
    assert [(snapshot.reading, snapshot.daemon, snapshot.partition) for snapshot in at_the_end] == [
        (ready.reading, ready.daemon, partition)
    ]
    assert fixture.disk.spec_channels() == {claim.uid: 9}


async def test_no_claim_is_prepared_while_the_boot_id_is_unknown(fixture: PrepareFixture) -> None:
    """Without a boot ID the claim would never count as live, and its channel never as held."""
    _, claim = await fixture.create_claim_with_channel(7)
    fixture.update(reading=structs.replace(fixture.state.snapshot.reading, boot_id=""))
    with pytest.raises(NotYet, match="its boot ID is not known"):
        await fixture.preparer().prepare(claim)
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {}


async def test_a_claim_on_a_node_without_fabric_is_prepared_without_a_channel(fixture: PrepareFixture) -> None:
    domain = await fixture.create_domain()
    claim = await fixture.create_claim(domain.metadata.uid)
    fixture.update(reading=reading(FabricState.NONE), daemon=daemon(ImexState.UNAVAILABLE), watched_partition=None)
    await fixture.preparer().prepare(claim)
    assert fixture.disk.spec_channels() == {claim.uid: -1}


async def test_a_channel_that_another_computedomain_still_holds_on_the_node_is_not_prepared(
    fixture: PrepareFixture,
) -> None:
    _, claim = await fixture.create_claim_with_channel(7)
    fixture.disk.add(prepared_claim("old", channel=7, domain="former", partition=fixture.partition))
    with pytest.raises(NotYet, match=r"channel 7 of NVLink partition .* is still held on node n1 by claim team/"):
        await fixture.preparer(deadline=8.0).prepare(claim)
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {"old": 7}


async def test_unprepare_needs_only_the_disk(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    _, claim = await fixture.create_claim_with_channel(7)
    await fixture.preparer().prepare(claim)
    await fixture.delete_claim(claim)
    fixture.update(
        reading=reading(FabricState.BROKEN), daemon=daemon(ImexState.UNAVAILABLE), watched_partition=None
    )
    proxy.cut(for_good=True)
    for _ in range(2):
        await fixture.preparer(proxied_client).unprepare(claim)
        assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {}
    assert proxy.requests == []


async def test_a_repeated_prepare_needs_no_api_server_and_rewrites_the_spec(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    _, claim = await fixture.create_claim_with_channel(7)
    answer = await fixture.preparer().prepare(claim)
    spec = fixture.disk.spec(claim.uid)
    fixture.disk.root.load_driver(99)
    proxy.cut(for_good=True)
    assert await fixture.preparer(proxied_client).prepare(claim) == answer
    spec["devices"][0]["containerEdits"]["deviceNodes"][0]["major"] = 99
    assert fixture.disk.spec(claim.uid) == spec


async def test_a_repeated_prepare_waits_only_for_the_first_hardware_reading(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    _, claim = await fixture.create_claim_with_channel(7)
    answer, ready = await fixture.preparer().prepare(claim), fixture.state.snapshot
    proxy.cut(for_good=True)
    fixture.update(reading=Reading())
    before = fixture.state.evaluations
    call = asyncio.create_task(fixture.preparer(proxied_client).prepare(claim))
    await until_async(lambda: fixture.state.evaluations > before)
    assert not call.done()
    fixture.update(reading=ready.reading)
    async with asyncio.timeout(25):
        assert await call == answer
    assert proxy.requests == []


async def test_after_a_reboot_a_claim_is_prepared_as_if_it_were_new(fixture: PrepareFixture) -> None:
    domain, claim = await fixture.create_claim_with_channel(7)
    old = prepared_claim(claim.uid, channel=3, partition=fixture.partition, boot_id="boot-0")
    fixture.disk.add(old)
    await fixture.preparer().prepare(claim)
    assert fixture.disk.spec_channels() == {claim.uid: 7}
    assert fixture.disk.load_checkpoint().claims[claim.uid].boot_id == "boot-1"
    fixture.disk.add(old)
    await fixture.admin.delete(COMPUTE_DOMAINS, domain)
    await fixture.write_partition()
    await fixture.deliver_partition()
    with pytest.raises(Rejected, match="has no ComputeDomain with this UID"):
        await fixture.preparer().prepare(claim)


async def test_concurrent_prepares_of_one_claim_return_the_same_devices(fixture: PrepareFixture) -> None:
    domain = await fixture.create_domain()
    await fixture.assign_channel(domain, 7)
    claim = await fixture.create_claim(domain.metadata.uid)
    calls = [asyncio.create_task(fixture.preparer().prepare(claim)) for _ in range(2)]
    await fixture.deliver_partition()
    first, second = await asyncio.gather(*calls)
    assert first == second
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {claim.uid: 7}


async def test_a_prepare_that_waits_for_its_peers_ends_when_the_last_one_is_connected(
    fixture: PrepareFixture,
) -> None:
    """The controller lists the other node only after the prepare has begun to wait."""
    domain = await fixture.create_domain()
    claim = await fixture.create_claim(domain.metadata.uid, labels=WAIT_FOR_PEERS)
    await fixture.assign_channel(domain, 7)
    await fixture.add_members(member("n2", 1), member("n3", 2))
    await fixture.deliver_partition()
    call = asyncio.create_task(fixture.preparer().prepare(claim))
    await fixture.list_nodes(domain, "n1", "n2", "n3")
    await until_async(lambda: fixture.state.evaluations > 1)
    assert fixture.disk.held_channels() == {}
    fixture.update(daemon=structs.replace(fixture.state.snapshot.daemon, connected=(1, 2)))
    async with asyncio.timeout(25):
        await call
    assert fixture.disk.held_channels() == {claim.uid: 7}


async def test_the_error_at_the_deadline_names_the_peers_that_are_missing(fixture: PrepareFixture) -> None:
    domain = await fixture.create_domain()
    claim = await fixture.create_claim(domain.metadata.uid, labels=WAIT_FOR_PEERS)
    await fixture.list_nodes(domain, "n1", "n2", "n3")
    await fixture.assign_channel(domain, 7)
    await fixture.add_members(member("n2", 1), member("n3", 2))
    await fixture.deliver_partition()
    with pytest.raises(NotYet, match=r"is not connected to other nodes with claims: n3 \(waited [0-9]+ s\)"):
        await fixture.preparer(deadline=8.0).prepare(claim)
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {}


async def test_by_default_a_prepare_does_not_wait_for_its_peers(fixture: PrepareFixture) -> None:
    domain, claim = await fixture.create_claim_with_channel(7)
    await fixture.list_nodes(domain, "n1", "n2")
    await fixture.preparer().prepare(claim)
    assert fixture.disk.held_channels() == {claim.uid: 7}
