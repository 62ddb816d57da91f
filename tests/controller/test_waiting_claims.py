"""What is said about claims that the scheduler has not allocated."""

import pytest
from msgspec import structs

from imex_dra.api.meta import OwnerReference
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.api.views import ClaimDevices, ClaimSpec, ResourceClaim
from imex_dra.controller.caches import Caches
from imex_dra.controller.capacity import Capacity
from imex_dra.controller.waitingclaims import CandidateNode, Obstacles, obstacles_on, waiting_claims
from tests.controller.claims import claim, configuration, domain
from tests.controller.partition import nvlink_node
from tests.controller.test_domain_nodes import with_own_words

POD = OwnerReference("v1", "Pod", "rank-0", "uid-rank-0", controller=True)
FREE = CandidateNode(nvlink_node("free", state=ImexState.READY, max_claims=16), 3)
FULL = CandidateNode(nvlink_node("full", state=ImexState.READY, max_claims=16), 16)
BROKEN = CandidateNode(nvlink_node("bad", fabric=FabricState.BROKEN, fabric_reason="3 links", max_claims=16), 0)
DOWN = CandidateNode(nvlink_node("down", max_claims=16), 0)
FAILING = CandidateNode(with_own_words(FREE.report, "the disk is full"), 0)
PLAIN = CandidateNode(nvlink_node("plain", fabric=FabricState.NONE, partition="", max_claims=16), 0)
OLDER = CandidateNode(nvlink_node("older", state=ImexState.READY), 40)
"""Its `imex node` does not report how many claims it can hold."""

NO_DEVICES = "no node publishes devices: "


def waiting(*pods: str) -> list[ResourceClaim]:
    return [
        structs.replace(found, metadata=structs.replace(found.metadata, owner_references=(owner,)))
        for pod in pods
        for found, owner in [(claim(f"{pod}-channel-x7x2k", nodes=()), structs.replace(POD, name=pod))]
    ]


@pytest.mark.parametrize(
    ("candidates", "has_pods", "causes"),
    [
        ([FREE, FULL], True, ": full is full (16 of 16)"),
        ([FREE, OLDER, PLAIN], True, ""),
        ([BROKEN, FREE], True, ": bad: the NVLink fabric is broken (3 links)"),
        ([BROKEN, FULL], True, ": bad: the NVLink fabric is broken (3 links); full is full (16 of 16)"),
        ([BROKEN], True, f": {NO_DEVICES}bad: the NVLink fabric is broken (3 links)"),
        ([DOWN], False, f": {NO_DEVICES}the IMEX daemon of node down is UNAVAILABLE, not READY"),
        ([FAILING], True, f": {NO_DEVICES}free is NotReady in its NVLink partition: the disk is full"),
        ([FULL], False, ": full is full (16 of 16)"),
        ([FULL, BROKEN, FREE], False, ""),
        ([], False, f": {NO_DEVICES}imex node has not reported on any node"),
    ],
    ids=[
        "one is full",
        "nothing is known",
        "one is broken",
        "broken and full",
        "all are broken",
        "no pods, none is ready",
        "one says itself that it is not ready",
        "no pods, all are full",
        "no pods, one is free",
        "no nodes",
    ],
)
def test_the_cause_names_nodes_that_can_take_no_claim(
    candidates: list[CandidateNode], has_pods: bool, causes: str
) -> None:
    found = waiting_claims(waiting("rank-1", "rank-0"), obstacles_on(candidates), has_pods=has_pods)
    assert found is not None
    assert found.cause == f"2 claims wait for a node (rank-0, rank-1){causes}"
    assert waiting_claims([], obstacles_on(candidates), has_pods=has_pods) is None


def test_only_unallocated_claims_of_pods_in_the_namespace_wait() -> None:
    caches = Caches()
    devices = ClaimSpec(ClaimDevices(config=(configuration("uid-job"),)))
    (of_pod,) = (structs.replace(found, spec=devices) for found in waiting("rank-0"))

    def variant(name: str, base: ResourceClaim = of_pod, **changes: object) -> ResourceClaim:
        return structs.replace(base, metadata=structs.replace(base.metadata, name=name, **changes))

    caches.claims.upsert(of_pod)
    caches.claims.upsert(variant("by-hand", owner_references=()))
    caches.claims.upsert(variant("deleted", deletion_timestamp="2026-01-01T00:00:00Z"))
    caches.claims.upsert(variant("elsewhere", namespace="other"))
    allocated = claim("allocated", configuration("uid-job"))
    caches.claims.upsert(variant("allocated", structs.replace(allocated, spec=devices), owner_references=(POD,)))
    assert [found.metadata.name for found in caches.waiting_claims(domain("job"))] == ["rank-0-channel-x7x2k"]
    assert caches.devices_in_use("n1") == 1


def test_the_capacity_of_the_cluster_follows_nodes_and_claims() -> None:
    caches = Caches()
    caches.nvlink_nodes.upsert(nvlink_node("a", state=ImexState.READY, max_claims=1))
    capacity = Capacity(caches)
    assert capacity.obstacles() == Obstacles(any_usable=True)
    first, second = claim("first", nodes=("a",)), claim("second", nodes=("b",))
    caches.claims.upsert(first)
    assert capacity.obstacles() == Obstacles(["a is full (1 of 1)"], any_full=True)
    caches.nvlink_nodes.upsert(nvlink_node("b", state=ImexState.READY, max_claims=1))
    assert capacity.obstacles().any_usable
    caches.claims.upsert(second)
    assert capacity.obstacles().causes == ["a is full (1 of 1)", "b is full (1 of 1)"]
    caches.nvlink_nodes.remove(nvlink_node("b"))
    assert capacity.obstacles().causes == ["a is full (1 of 1)"]
    caches.claims.remove(first)
    assert capacity.obstacles() == Obstacles(any_usable=True)
