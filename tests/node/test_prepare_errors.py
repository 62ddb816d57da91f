"""Why a claim is not prepared, word for word: at once if waiting cannot help, otherwise at the deadline."""

import asyncio
import uuid

import pytest
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS, AllocationMode
from imex_dra.api.meta import ObjectMeta, key_of
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.api.views import NAMESPACES, Namespace
from imex_dra.base.errors import NotYet, Rejected
from imex_dra.dra.plugin import ClaimId
from imex_dra.kube.client import Client
from tests.kube.faultproxy import FaultProxy
from tests.node.prepare_fixture import ALLOCATION_RESULT, ManualClock, PrepareFixture
from tests.node.snapshots import daemon, reading
from tests.waiting import until_async

pytestmark = pytest.mark.kube

CHECK_CONTROLLER = "check that imex controller runs: kubectl -n imex-dra get lease imex-controller"


async def immediate_error(fixture: PrepareFixture, claim: ClaimId) -> str:
    """The prepare fails long before its deadline and persists nothing."""
    async with asyncio.timeout(45):
        with pytest.raises(Rejected) as rejected:
            await fixture.preparer(deadline=300.0).prepare(claim)
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {}
    return str(rejected.value)


async def error_at_deadline(
    fixture: PrepareFixture, client: Client, proxy: FaultProxy, claim: ClaimId, *, last_request: str
) -> str:
    """The deadline passes after the prepare has sent `last_request`, when it can only wait."""
    proxy.requests.clear()
    clock = ManualClock()
    call = asyncio.create_task(fixture.preparer(client, deadline=40.0, clock=clock).prepare(claim))
    await until_async(lambda: any(last_request in request for request in proxy.requests))
    clock.time = 40.0
    # Any change wakes the prepare, which then sees the new time.
    snapshot = fixture.state.snapshot
    fixture.update(daemon=structs.replace(snapshot.daemon, generation=snapshot.daemon.generation + 1))
    async with asyncio.timeout(45):
        with pytest.raises(NotYet) as refused:
            await call
    assert fixture.disk.held_channels() == fixture.disk.spec_channels() == {}
    return str(refused.value)


async def test_the_claim_does_not_exist(fixture: PrepareFixture) -> None:
    claim = ClaimId(fixture.namespace, "gone", "uid-1")
    assert await immediate_error(fixture, claim) == (
        f"claim {claim} no longer exists; if its pod still exists, delete the pod"
    )


async def test_the_claim_was_deleted_and_created_again(fixture: PrepareFixture) -> None:
    live = await fixture.create_claim("uid-job")
    claim = ClaimId(live.namespace, live.name, "uid-before")
    assert await immediate_error(fixture, claim) == (
        f"claim {claim} has UID {live.uid}, but the kubelet requested uid-before; delete the pod"
    )


async def test_the_claim_is_not_allocated(fixture: PrepareFixture) -> None:
    claim = await fixture.create_claim("uid-job", results=())
    assert await immediate_error(fixture, claim) == (
        f"claim {claim} cannot be prepared on node n1: it is not allocated; delete the pod"
    )


async def test_the_claim_is_allocated_on_another_node(fixture: PrepareFixture) -> None:
    claim = await fixture.create_claim("uid-job", results=({**ALLOCATION_RESULT, "pool": "n2"},))
    assert await immediate_error(fixture, claim) == (
        f"claim {claim} cannot be prepared on node n1: it is allocated on node n2; delete the pod"
    )


async def test_the_config_has_an_unknown_field(fixture: PrepareFixture) -> None:
    claim = await fixture.create_claim("uid-job", domainIds=["uid-job"])
    assert await immediate_error(fixture, claim) == (
        f"claim {claim} has an invalid configuration for compute-domain.nvidia.com: Object contains unknown field"
        " `domainIds`; claim from the ResourceClaimTemplate that the ComputeDomain names"
    )


async def test_the_computedomain_does_not_exist(fixture: PrepareFixture) -> None:
    claim = await fixture.create_claim("uid-unknown")
    assert await immediate_error(fixture, claim) == (
        f"claim {claim} names ComputeDomain uid-unknown, but namespace {fixture.namespace} has no ComputeDomain"
        " with this UID: it was deleted or recreated; delete the pod, so that it gets a claim from the current"
        " template"
    )


async def test_the_computedomain_is_in_another_namespace(fixture: PrepareFixture) -> None:
    owner = f"{fixture.namespace}-owner"
    await fixture.admin.create(NAMESPACES, Namespace(ObjectMeta(name=owner)))
    domain = await fixture.create_domain(namespace=owner)
    claim = await fixture.create_claim(domain.metadata.uid)
    message = (
        f"claim {claim} names ComputeDomain {domain.metadata.uid}, which is in another namespace, and a channel"
        f" can only be used in the namespace of its ComputeDomain; create a ComputeDomain in {fixture.namespace}"
    )
    assert await immediate_error(fixture, claim) == message
    await fixture.assign_channel(domain)
    await fixture.deliver_partition()
    assert await immediate_error(fixture, claim) == message


async def test_the_computedomain_is_being_deleted(fixture: PrepareFixture) -> None:
    domain = await fixture.create_domain(finalizers=("imex-dra.io/test",))
    await fixture.admin.delete(COMPUTE_DOMAINS, domain)
    claim = await fixture.create_claim(domain.metadata.uid)
    assert await immediate_error(fixture, claim) == (
        f"ComputeDomain {key_of(domain)} is being deleted and accepts no new pods; create it again, then delete"
        " the pod"
    )
    await fixture.admin.patch(COMPUTE_DOMAINS, key_of(domain), {"metadata": {"finalizers": None}})


async def test_the_controller_did_not_accept_the_computedomain(fixture: PrepareFixture) -> None:
    domain = await fixture.create_domain()
    condition = {
        "type": "Accepted",
        "status": "False",
        "reason": "AllChannelsRefused",
        "message": "message of the controller",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await fixture.admin.patch(
        COMPUTE_DOMAINS, key_of(domain), {"status": {"conditions": [condition]}}, subresource="status"
    )
    claim = await fixture.create_claim(domain.metadata.uid, mode=AllocationMode.ALL)
    assert await immediate_error(fixture, claim) == "message of the controller"


async def test_the_controller_says_why_it_assigns_no_channel(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    domain = await fixture.create_domain()
    condition = {
        "type": "ChannelAssigned",
        "status": "False",
        "reason": "ChannelsExhausted",
        "message": f"NVLink partition {fixture.partition} has no free channel; delete ComputeDomains",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await fixture.admin.patch(
        COMPUTE_DOMAINS, key_of(domain), {"status": {"conditions": [condition]}}, subresource="status"
    )
    claim = await fixture.create_claim(domain.metadata.uid)
    assert await error_at_deadline(fixture, proxied_client, proxy, claim, last_request="/computedomains") == (
        f"NVLink partition {fixture.partition} has no free channel (waited 40 s); delete ComputeDomains"
    )


async def test_the_claim_requests_all_channels_and_its_computedomain_does_not(fixture: PrepareFixture) -> None:
    domain = await fixture.create_domain()
    await fixture.assign_channel(domain)
    await fixture.deliver_partition()
    claim = await fixture.create_claim(domain.metadata.uid, mode=AllocationMode.ALL)
    assert await immediate_error(fixture, claim) == (
        f"ComputeDomain {key_of(domain)} requests allocationMode All, which opens the memory of every workload in"
        " the partition; use Single, or ask an administrator to label the namespace"
        " imex-dra.io/all-channels=allowed"
    )


async def test_the_fabric_is_broken(fixture: PrepareFixture) -> None:
    domain = await fixture.create_domain()
    claim = await fixture.create_claim(domain.metadata.uid)
    fixture.update(reading=reading(FabricState.BROKEN, "GPU 2 fell off the bus"))
    assert await immediate_error(fixture, claim) == (
        "n1: the NVLink fabric is broken (GPU 2 fell off the bus); the pod cannot run here until the node is"
        " repaired: delete the pod to reschedule it"
    )


async def test_the_fabric_breaks_while_a_prepare_waits(fixture: PrepareFixture) -> None:
    domain = await fixture.create_domain()
    claim = await fixture.create_claim(domain.metadata.uid)
    before = fixture.state.evaluations
    call = asyncio.create_task(immediate_error(fixture, claim))
    await until_async(lambda: fixture.state.evaluations > before)
    fixture.update(reading=reading(FabricState.BROKEN, "GPU 2 fell off the bus"))
    assert "GPU 2 fell off the bus" in await call


async def test_the_error_at_the_deadline_names_the_current_obstacle(
    fixture: PrepareFixture, proxied_client: Client, proxy: FaultProxy
) -> None:
    domain = await fixture.create_domain()
    claim = await fixture.create_claim(domain.metadata.uid)
    name, ready = fixture.partition, fixture.state.snapshot

    async def error(last_request: str) -> str:
        return await error_at_deadline(fixture, proxied_client, proxy, claim, last_request=last_request)

    assert await error("/computedomains") == (
        f"ComputeDomain {key_of(domain)} has no channel in NVLink partition {name} yet (waited 40 s);"
        f" {CHECK_CONTROLLER}"
    )
    missing = PartitionId(f"{uuid.uuid4()}.1")
    fixture.update(reading=structs.replace(ready.reading, partition=missing))
    assert await error("/computedomains") == (
        f"node n1 has not received NVLinkPartition {missing} from the API server yet (waited 40 s);"
        f" {CHECK_CONTROLLER}"
    )
    fixture.update(reading=reading(FabricState.PENDING, "the driver is not loaded"))
    assert await error("/computedomains") == (
        "n1: the NVLink fabric is not up: the driver is not loaded (waited 40 s)"
    )
    await fixture.assign_channel(domain)
    fixture.update(reading=ready.reading, daemon=daemon(ImexState.INIT_GPU))
    await fixture.deliver_partition()
    assert await error("/resourceclaims") == (
        "the IMEX daemon of node n1 is INIT_GPU, not READY (waited 40 s); if it does not recover, delete the pod"
        " to reschedule it"
    )
    fixture.update(daemon=structs.replace(ready.daemon, index=3))
    assert await error("/resourceclaims") == (
        f"the IMEX daemon of node n1 runs with index 3, but the node's index in NVLink partition {name} is 0"
        " (waited 40 s); the daemon restarts with the new index by itself"
    )
