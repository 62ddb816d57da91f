"""A grant is confirmed by the NVLinkPartition on the API server, not by the watch, and at no cost in time."""

import asyncio

import pytest

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import Key, Resource, T
from imex_dra.api.nvlinknode import ImexState
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, ChannelState
from imex_dra.base.errors import Rejected
from imex_dra.dra.plugin import ClaimId
from imex_dra.kube.client import Client
from tests.kube.faultproxy import FaultProxy
from tests.node.prepare_fixture import PrepareFixture
from tests.node.snapshots import daemon
from tests.waiting import until_async

pytestmark = pytest.mark.kube


class HeldBackClient(Client):
    """Sends GET requests for one kind only after `release`; counts all GET requests that were answered."""

    def __init__(self, client: Client, kind: str) -> None:
        super().__init__(client._http)
        self.kind, self.release = kind, asyncio.Event()
        self.requests: list[str] = []
        """Shared by copies of the client."""

    @property
    def answered(self) -> int:
        return len(self.requests)

    async def get(self, resource: Resource[T], key: Key) -> T:
        if resource.kind == self.kind:
            await self.release.wait()
        answer = await super().get(resource, key)
        self.requests.append(resource.kind)
        return answer


def partition_reads(proxy: FaultProxy) -> int:
    return sum("/nvlinkpartitions/" in request for request in proxy.requests)


async def assert_waits_until_domain_is_deleted(
    fixture: PrepareFixture, client: Client, proxy: FaultProxy, claim: ClaimId, domain: ComputeDomain
) -> None:
    """A prepare without a grant waits and watches its ComputeDomain; the deletion of the ComputeDomain ends it."""
    call = asyncio.create_task(fixture.preparer(client, deadline=300.0).prepare(claim))
    await until_async(lambda: any("/computedomains" in request for request in proxy.requests))
    await fixture.admin.delete(COMPUTE_DOMAINS, domain)
    async with asyncio.timeout(45):
        with pytest.raises(Rejected, match="has no ComputeDomain with this UID"):
            await call
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {}


async def test_only_the_first_claim_of_a_computedomain_on_a_node_reads_the_partition(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    domain, first = await fixture.create_claim_with_channel(7)
    second = await fixture.create_claim(domain.metadata.uid)
    await fixture.assign_channel(domain, 8)
    await fixture.preparer(proxied_client).prepare(first)
    assert partition_reads(proxy) == 1
    assert fixture.disk.held_channels() == {first.uid: 8}
    await fixture.deliver_partition()
    await fixture.preparer(proxied_client).prepare(second)
    assert partition_reads(proxy) == 1
    assert fixture.disk.held_channels() == {first.uid: 8, second.uid: 8}


async def test_a_prefetch_from_before_the_assignment_is_followed_by_another_read(fixture: PrepareFixture) -> None:
    domain = await fixture.create_domain()
    claim = await fixture.create_claim(domain.metadata.uid)
    client = HeldBackClient(fixture.admin, "ResourceClaim")
    call = asyncio.create_task(fixture.preparer(client).prepare(claim))
    await until_async(lambda: client.answered == 1)
    await fixture.assign_channel(domain, 7)
    await fixture.deliver_partition()
    client.release.set()
    async with asyncio.timeout(25):
        await call
    assert fixture.disk.held_channels() == {claim.uid: 7}
    assert client.answered == 3


async def test_the_partition_is_read_again_after_a_wait(fixture: PrepareFixture) -> None:
    domain, claim = await fixture.create_claim_with_channel(7)
    ready_daemon = fixture.state.snapshot.daemon
    fixture.update(daemon=daemon(ImexState.WAITING_FOR_RECOVERY))
    call = asyncio.create_task(fixture.preparer().prepare(claim))
    await until_async(lambda: fixture.state.evaluations > 0)
    await fixture.assign_channel(domain, 8)
    fixture.update(daemon=ready_daemon)
    async with asyncio.timeout(25):
        await call
    assert fixture.disk.held_channels() == {claim.uid: 8}


async def test_an_unanswered_prefetch_does_not_delay_an_error(fixture: PrepareFixture) -> None:
    client = HeldBackClient(fixture.admin, "NVLinkPartition")
    async with asyncio.timeout(45):
        with pytest.raises(Rejected, match="no longer exists"):
            await fixture.preparer(client, deadline=300.0).prepare(ClaimId(fixture.namespace, "gone", "uid-gone"))


async def test_an_assignment_that_was_released_since_the_watch_delivered_it_is_not_used(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    domain, claim = await fixture.create_claim_with_channel(7)
    await fixture.assign_channel(domain, 7, state=ChannelState.RELEASED)
    await assert_waits_until_domain_is_deleted(fixture, proxied_client, proxy, claim, domain)


async def test_a_partition_that_was_deleted_since_the_watch_delivered_it_grants_nothing(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    domain, claim = await fixture.create_claim_with_channel(7)
    await fixture.admin.delete(NVLINK_PARTITIONS, await fixture.deliver_partition())
    await assert_waits_until_domain_is_deleted(fixture, proxied_client, proxy, claim, domain)
