"""Why a claim is not prepared: at once where no wait can help, else when the time is over; word for word."""

import asyncio

import pytest
from msgspec import structs

from imex_dra.api.computedomain import COMPUTE_DOMAINS, AllocationMode
from imex_dra.api.meta import ObjectMeta, key_of
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.api.views import NAMESPACES, Namespace
from imex_dra.base.errors import ImexError, NotYet, Rejected
from imex_dra.dra.plugin import ClaimId
from imex_dra.kube.client import Client
from tests.kube.proxy import Proxy
from tests.kube.waiting import until
from tests.node.facts import daemon, member, reading
from tests.node.scene import RESULT, HandClock, Scene

pytestmark = pytest.mark.kube

CONTROLLER = "check that imex controller runs: kubectl -n imex-dra get lease imex-controller"


async def refusal(scene: Scene, claim: ClaimId, kind: type[ImexError]) -> str:
    """Far sooner than the deadline, and with nothing written down."""
    async with asyncio.timeout(45):
        with pytest.raises(kind) as refused:
            await scene.preparation(deadline=300.0).prepare(claim)
    assert scene.desk.held() == scene.desk.specs() == {}
    return str(refused.value)


class Impatience:
    """Prepares a claim, and lets 40 s pass as soon as it has read what it reads."""

    def __init__(self, scene: Scene, client: Client, proxy: Proxy) -> None:
        self.scene, self.client, self.proxy = scene, client, proxy

    async def reason(self, claim: ClaimId, *, last_read: str) -> str:
        self.proxy.requests.clear()
        clock = HandClock()
        preparation = self.scene.preparation(self.client, deadline=40.0, clock=clock)
        call = asyncio.create_task(preparation.prepare(claim))
        await until(lambda: any(last_read in request for request in self.proxy.requests))
        clock.time = 40.0
        known = self.scene.situation.known
        self.scene.learn(daemon=structs.replace(known.daemon, generation=known.daemon.generation + 1))
        async with asyncio.timeout(45):
            with pytest.raises(NotYet) as refused:
                await call
        assert self.scene.desk.held() == self.scene.desk.specs() == {}
        return str(refused.value)


async def test_a_claim_that_does_not_exist(scene: Scene) -> None:
    claim = ClaimId(scene.namespace, "gone", "uid-1")
    assert await refusal(scene, claim, Rejected) == (
        f"claim {claim} does not exist any more; if its pod still does, delete the pod"
    )


async def test_a_claim_that_was_made_anew(scene: Scene) -> None:
    live = await scene.claim("uid-job")
    claim = ClaimId(live.namespace, live.name, "uid-before")
    assert await refusal(scene, claim, Rejected) == (
        f"claim {claim} is not the one the kubelet asks for: its UID is {live.uid}, not uid-before; delete the pod"
    )


async def test_a_claim_that_is_not_allocated(scene: Scene) -> None:
    claim = await scene.claim("uid-job", results=())
    assert await refusal(scene, claim, Rejected) == (
        f"claim {claim} can't be prepared on node n1: it is not allocated; delete the pod"
    )


async def test_a_claim_for_another_node(scene: Scene) -> None:
    claim = await scene.claim("uid-job", results=({**RESULT, "pool": "n2"},))
    assert await refusal(scene, claim, Rejected) == (
        f"claim {claim} can't be prepared on node n1: it is allocated on node n2; delete the pod"
    )


async def test_an_unknown_field_in_the_config(scene: Scene) -> None:
    claim = await scene.claim("uid-job", domainIds=["uid-job"])
    assert await refusal(scene, claim, Rejected) == (
        f"claim {claim} has a configuration for compute-domain.nvidia.com that can't be read: Object contains"
        " unknown field `domainIds`; claim from the ResourceClaimTemplate that the ComputeDomain names"
    )


async def test_a_computedomain_that_does_not_exist(scene: Scene) -> None:
    claim = await scene.claim("uid-of-nobody")
    assert await refusal(scene, claim, Rejected) == (
        f"claim {claim} asks for ComputeDomain uid-of-nobody, but namespace {scene.namespace} has none with this"
        " UID: it was deleted or made anew; delete the pod, so that it gets a claim from the current template"
    )


async def test_a_computedomain_of_another_namespace(scene: Scene) -> None:
    owners = f"{scene.namespace}-owners"
    await scene.admin.create(NAMESPACES, Namespace(ObjectMeta(name=owners)))
    domain = await scene.domain(namespace=owners)
    claim = await scene.claim(domain.metadata.uid)
    words = (
        f"claim {claim} asks for ComputeDomain {domain.metadata.uid}, which is in another namespace; a channel is"
        f" given only inside its ComputeDomain's namespace: create a ComputeDomain in {scene.namespace}"
    )
    assert await refusal(scene, claim, Rejected) == words
    await scene.assign(domain)
    await scene.see_partition()
    assert await refusal(scene, claim, Rejected) == words


async def test_a_computedomain_that_is_being_deleted(scene: Scene) -> None:
    domain = await scene.domain(finalizers=("imex-dra.io/test",))
    await scene.admin.delete(COMPUTE_DOMAINS, domain)
    claim = await scene.claim(domain.metadata.uid)
    assert await refusal(scene, claim, Rejected) == (
        f"ComputeDomain {key_of(domain)} is being deleted and takes no new pods; create it anew, then delete the"
        " pod"
    )
    await scene.admin.patch(COMPUTE_DOMAINS, key_of(domain), {"metadata": {"finalizers": None}})


async def test_all_channels_that_the_controller_refused(scene: Scene) -> None:
    domain = await scene.domain()
    condition = {
        "type": "Accepted",
        "status": "False",
        "reason": "AllChannelsRefused",
        "message": "what the controller said",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await scene.admin.patch(
        COMPUTE_DOMAINS, key_of(domain), {"status": {"conditions": [condition]}}, subresource="status"
    )
    claim = await scene.claim(domain.metadata.uid, mode=AllocationMode.ALL)
    assert await refusal(scene, claim, Rejected) == "what the controller said"


async def test_all_channels_that_nobody_but_the_claim_speaks_of(scene: Scene) -> None:
    domain = await scene.domain()
    await scene.assign(domain)
    await scene.see_partition()
    claim = await scene.claim(domain.metadata.uid, mode=AllocationMode.ALL)
    assert await refusal(scene, claim, Rejected) == (
        f"ComputeDomain {key_of(domain)} asks for allocationMode All, which opens the memory of every workload in"
        " the partition; use Single, or let an administrator label the namespace imex-dra.io/all-channels=allowed"
    )


async def test_a_broken_fabric(scene: Scene) -> None:
    domain = await scene.domain()
    claim = await scene.claim(domain.metadata.uid)
    scene.learn(reading=reading(FabricState.BROKEN, "GPU 2 fell off the bus"))
    assert await refusal(scene, claim, Rejected) == (
        "the NVLink fabric of node n1 is broken: GPU 2 fell off the bus; the pod can't run here until the node is"
        " repaired: delete the pod to reschedule it"
    )


async def test_a_fabric_that_breaks_while_a_prepare_waits(scene: Scene) -> None:
    domain = await scene.domain()
    claim = await scene.claim(domain.metadata.uid)
    call = asyncio.create_task(refusal(scene, claim, Rejected))
    await scene.see_partition()
    scene.learn(reading=reading(FabricState.BROKEN, "GPU 2 fell off the bus"))
    assert "GPU 2 fell off the bus" in await call


async def test_what_was_missing_when_the_time_was_over(scene: Scene, far_client: Client, proxy: Proxy) -> None:
    domain = await scene.domain()
    claim = await scene.claim(domain.metadata.uid)
    name, able = scene.partition, scene.situation.known
    after = Impatience(scene, far_client, proxy)
    assert await after.reason(claim, last_read="/computedomains") == (
        f"ComputeDomain {key_of(domain)} has no channel in NVLink partition {name} yet, after waiting for 40 s;"
        f" {CONTROLLER}"
    )
    scene.learn(partition=None)
    assert await after.reason(claim, last_read="/computedomains") == (
        f"node n1 is not a member of NVLink partition {name}, after waiting for 40 s; {CONTROLLER}"
    )
    scene.learn(reading=reading(FabricState.PENDING, "the driver is not loaded"))
    assert await after.reason(claim, last_read="/computedomains") == (
        "the NVLink fabric of node n1 is not up, after waiting for 40 s: the driver is not loaded"
    )
    await scene.assign(domain)
    seen = await scene.see_partition()
    scene.learn(reading=able.reading, daemon=daemon(ImexState.INIT_GPU))
    assert await after.reason(claim, last_read="/resourceclaims") == (
        "the IMEX daemon of node n1 is INIT_GPU, not READY, after waiting for 40 s; if it does not come back,"
        " delete the pod to reschedule it"
    )
    moved = structs.replace(seen, status=structs.replace(seen.status, members=(member(slot=3),)))
    scene.learn(daemon=able.daemon, partition=moved)
    assert await after.reason(claim, last_read="/resourceclaims") == (
        f"the IMEX daemon of node n1 runs in slot 0, but the node's slot in NVLink partition {name} is 3, after"
        " waiting for 40 s; the daemon restarts into it by itself"
    )
