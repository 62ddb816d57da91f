"""What happens during a prepare: an unprepare, a deletion, a new epoch, a cancelled call, a failing API server."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import key_of
from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.errors import NotYet, Rejected
from imex_dra.dra.plugin import ClaimId
from imex_dra.kube.client import Client
from imex_dra.kube.patch import patch_changes
from imex_dra.node.prepared import StaleGrant
from tests.kube.faultproxy import FaultProxy
from tests.node.disk import prepared_claim
from tests.node.prepare_fixture import ManualClock, PrepareFixture
from tests.node.snapshots import daemon
from tests.waiting import until_async

pytestmark = pytest.mark.kube


class WaitingPrepare:
    """A prepare that has read its claim, and waits for nothing but a READY daemon."""

    def __init__(self, fixture: PrepareFixture, clock: ManualClock) -> None:
        self.fixture, self.clock = fixture, clock
        self.ready_daemon = fixture.state.snapshot.daemon
        self.domain: ComputeDomain
        self.claim: ClaimId
        self.call: asyncio.Task[Any]

    async def start(self, client: Client) -> None:
        self.domain, self.claim = await self.fixture.create_claim_with_channel(7)
        self.fixture.update(daemon=daemon(ImexState.WAITING_FOR_RECOVERY))
        preparer = self.fixture.preparer(client, deadline=40.0, clock=self.clock)
        self.call = asyncio.create_task(preparer.prepare(self.claim))
        await until_async(lambda: self.fixture.state.evaluations > 0)

    def let_daemon_recover(self) -> None:
        self.fixture.update(daemon=self.ready_daemon)

    async def until_grant_is_stale(self, epoch: int) -> None:
        """The node acknowledges an epoch before the grant is committed."""
        self.fixture.disk.prepared_claims().raise_fence(self.fixture.partition, epoch)
        self.let_daemon_recover()
        # The first evaluation waits for the daemon, the second one grants, the third one follows a StaleGrant.
        await until_async(lambda: self.fixture.state.evaluations > 2)


@pytest.fixture
async def waiting(fixture: PrepareFixture, proxied_client: Client) -> WaitingPrepare:
    prepare = WaitingPrepare(fixture, ManualClock())
    await prepare.start(proxied_client)
    return prepare


async def test_a_claim_that_was_unprepared_during_its_prepare_is_not_committed(
    waiting: WaitingPrepare, fixture: PrepareFixture
) -> None:
    await fixture.preparer().unprepare(waiting.claim)
    waiting.let_daemon_recover()
    with pytest.raises(NotYet) as refused:
        await waiting.call
    assert str(refused.value) == (
        f"claim {waiting.claim} was unprepared while it was being prepared; the kubelet prepares it again if it is"
        " still needed"
    )
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {}


async def test_a_claim_that_was_unprepared_during_its_prepare_can_be_prepared_again(
    waiting: WaitingPrepare, fixture: PrepareFixture
) -> None:
    await fixture.preparer().unprepare(waiting.claim)
    waiting.let_daemon_recover()
    await asyncio.wait({waiting.call})
    assert isinstance(waiting.call.exception(), NotYet)
    await fixture.preparer().prepare(waiting.claim)
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {waiting.claim.uid: 7}


async def test_an_unprepare_of_another_claim_does_not_stop_a_prepare(
    waiting: WaitingPrepare, fixture: PrepareFixture
) -> None:
    await fixture.preparer().unprepare(ClaimId(waiting.claim.namespace, "another", "uid-another"))
    waiting.let_daemon_recover()
    await waiting.call
    assert fixture.disk.held_channels() == {waiting.claim.uid: 7}


async def test_a_wait_ends_at_once_when_its_computedomain_is_deleted(
    waiting: WaitingPrepare, fixture: PrepareFixture
) -> None:
    await fixture.admin.delete(COMPUTE_DOMAINS, waiting.domain)
    message = f"claim {waiting.claim} names ComputeDomain .* has no ComputeDomain with this UID"
    async with asyncio.timeout(45):
        with pytest.raises(Rejected, match=message):
            await waiting.call
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {}


async def test_a_wait_ends_at_once_when_its_computedomain_gets_a_deletion_timestamp(
    waiting: WaitingPrepare, fixture: PrepareFixture
) -> None:
    domain = waiting.domain
    meta = structs.replace(domain.metadata, finalizers=("test.example/finalizer",))
    domain = await patch_changes(fixture.admin, COMPUTE_DOMAINS, domain, structs.replace(domain, metadata=meta))
    await fixture.admin.delete(COMPUTE_DOMAINS, domain)
    async with asyncio.timeout(45):
        with pytest.raises(Rejected, match=f"ComputeDomain {fixture.namespace}/job is being deleted"):
            await waiting.call
    await fixture.admin.patch(COMPUTE_DOMAINS, key_of(domain), {"metadata": {"finalizers": None}})


async def test_a_computedomain_that_was_deleted_before_the_wait_began_ends_it_too(fixture: PrepareFixture) -> None:
    domain, claim = await fixture.create_claim_with_channel(7)
    fixture.update(daemon=daemon(ImexState.WAITING_FOR_RECOVERY))
    await fixture.admin.delete(COMPUTE_DOMAINS, domain)
    async with asyncio.timeout(45):
        with pytest.raises(Rejected, match="has no ComputeDomain with this UID"):
            await fixture.preparer(deadline=300.0).prepare(claim)


async def test_a_prepare_whose_grant_became_stale_waits_for_a_new_one(
    waiting: WaitingPrepare, fixture: PrepareFixture
) -> None:
    await waiting.until_grant_is_stale(3)
    assert not waiting.call.done()
    assert fixture.disk.held_channels() == {}
    await fixture.write_epoch(3)
    await fixture.deliver_partition()
    async with asyncio.timeout(45):
        await waiting.call
    assert fixture.disk.held_channels() == {waiting.claim.uid: 7}


async def test_a_grant_that_stays_stale_ends_with_the_deadline(fixture: PrepareFixture) -> None:
    """Another program of this node has seen that the node moved; this one never does."""
    domain = await fixture.create_domain()
    await fixture.assign_channel(domain)
    await fixture.deliver_partition()
    first, second = [await fixture.create_claim(domain.metadata.uid) for _ in range(2)]
    await fixture.preparer().prepare(first)
    fixture.disk.prepared_claims().raise_fence("another.1", 1)
    async with asyncio.timeout(45):
        with pytest.raises(StaleGrant):
            await fixture.preparer(deadline=0.5).prepare(second)
    assert fixture.disk.held_channels() == {first.uid: 7}


async def test_a_claim_that_was_unprepared_while_its_prepare_waits_for_a_new_grant_is_not_committed(
    waiting: WaitingPrepare, fixture: PrepareFixture
) -> None:
    await waiting.until_grant_is_stale(3)
    await fixture.preparer().unprepare(waiting.claim)
    await fixture.write_epoch(3)
    await fixture.deliver_partition()
    async with asyncio.timeout(45):
        with pytest.raises(NotYet, match="was unprepared while it was being prepared"):
            await waiting.call
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {}


async def test_a_prepare_that_the_kubelet_cancelled_commits_nothing(
    waiting: WaitingPrepare, fixture: PrepareFixture
) -> None:
    waiting.call.cancel()
    waiting.let_daemon_recover()
    with suppress(asyncio.CancelledError):
        await waiting.call
    assert waiting.call.cancelled()
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {}


async def test_the_deadline_holds_for_all_waits_of_a_prepare_together(
    waiting: WaitingPrepare, proxy: FaultProxy
) -> None:
    """The kubelet's limit is for the whole call, however many things it waits for one after the other."""
    waiting.clock.time = 39.5
    proxy.hang()
    waiting.let_daemon_recover()
    async with asyncio.timeout(25):  # less than the whole deadline of 40 s
        with pytest.raises(NotYet, match="no answer in time"):
            await waiting.call


async def test_an_unreachable_api_server_is_named_in_the_error(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    claim = await fixture.create_claim("uid-job")
    proxy.cut(for_good=True)
    with pytest.raises(NotYet) as refused:
        await fixture.preparer(proxied_client, deadline=3.0).prepare(claim)
    message = str(refused.value)
    assert message.startswith(
        f"node n1 cannot reach the API server to prepare claim {claim}: GET /apis/resource.k8s.io"
    )
    assert "no response from 127.0.0.1" in message
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {}


async def test_an_api_server_that_does_not_answer_is_named_in_the_error_at_the_deadline(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    claim = await fixture.create_claim("uid-job")
    proxy.hang()
    with pytest.raises(NotYet) as refused:
        await fixture.preparer(proxied_client, deadline=0.5).prepare(claim)
    assert str(refused.value).startswith(
        f"node n1 cannot reach the API server to prepare claim {claim}: no answer in time (waited "
    )


@pytest.mark.slow
@pytest.mark.parametrize("code", [429, 500, 503])
async def test_reads_that_the_api_server_fails_are_repeated_until_they_succeed(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy, code: int
) -> None:
    """More often than a client repeats a request by itself; the claim and the partition are read at once."""
    _, claim = await fixture.create_claim_with_channel(7)
    proxy.answer(code, times=14, retry_after="0")
    await fixture.preparer(proxied_client, deadline=45.0).prepare(claim)
    assert fixture.disk.held_channels() == {claim.uid: 7}


@pytest.mark.slow
async def test_the_computedomain_is_read_until_the_read_succeeds(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    """The node holds a channel, so the partition is not prefetched; the ComputeDomain is read after the claim."""
    fixture.disk.add(prepared_claim("another", channel=3, domain="another", partition=fixture.partition))
    claim = await fixture.create_claim("uid-gone")
    client = proxied_client
    proxy.fail_path("/computedomains", times=8)
    with pytest.raises(Rejected, match="has no ComputeDomain with this UID"):
        await fixture.preparer(client, deadline=45.0).prepare(claim)
    assert sum("/computedomains" in request for request in proxy.requests) == 8 + 2


async def test_a_connection_that_breaks_is_opened_again_until_the_deadline(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    _, claim = await fixture.create_claim_with_channel(7)
    proxy.cut(for_good=True)
    call = asyncio.create_task(fixture.preparer(proxied_client, deadline=45.0).prepare(claim))
    await until_async(lambda: proxy.refused >= 8)
    proxy.resume()
    await call
    assert fixture.disk.held_channels() == {claim.uid: 7}


async def test_the_error_at_the_deadline_names_the_answer_of_the_api_server(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    """The server asks to wait for longer than the call may last: there is a last attempt before the deadline."""
    claim = await fixture.create_claim("uid-job")
    proxy.answer(429, times=10_000, retry_after="600")
    with pytest.raises(NotYet, match=r"injected 429 \(waited \d+ s\)"):
        await fixture.preparer(proxied_client, deadline=5.0).prepare(claim)
    assert sum("/resourceclaims/" in request for request in proxy.requests) == 2


async def reach_deadline(fixture: PrepareFixture, client: Client, claim: ClaimId) -> asyncio.Task[Any]:
    """A prepare waits for its channel, and the next change that wakes it comes at its deadline."""
    clock = ManualClock()
    call = asyncio.create_task(fixture.preparer(client, deadline=40.0, clock=clock).prepare(claim))
    await until_async(lambda: fixture.state.evaluations > 1)
    clock.time = 40.0
    return call


async def test_a_channel_that_the_watch_has_not_delivered_is_found_at_the_deadline(
    fixture: PrepareFixture, proxied_client: Client
) -> None:
    """Seed 86: the API server was unreachable for long, and the watch reconnects only after the whole call."""
    domain = await fixture.create_domain()
    claim = await fixture.create_claim(domain.metadata.uid)
    call = await reach_deadline(fixture, proxied_client, claim)
    await fixture.assign_channel(domain, 7)
    fixture.update(prepares=1)
    async with asyncio.timeout(45):
        await call
    assert fixture.disk.held_channels() == {claim.uid: 7}


async def test_an_api_server_that_fails_at_the_deadline_is_the_cause(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    """What the watch delivered before may no longer be true."""
    domain = await fixture.create_domain()
    claim = await fixture.create_claim(domain.metadata.uid)
    call = await reach_deadline(fixture, proxied_client, claim)
    await until_async(lambda: any("watch" in request for request in proxy.requests))
    proxy.cut(for_good=True)
    fixture.update(prepares=1)
    async with asyncio.timeout(45):
        with pytest.raises(NotYet, match="n1 cannot reach the API server to prepare claim"):
            await call
