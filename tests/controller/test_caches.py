"""The indexes of the controller's caches."""

import pytest
from msgspec import Raw, structs

from imex_dra.api.computedomain import AllocationMode
from imex_dra.api.meta import ObjectMeta
from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, DomainReference
from imex_dra.api.views import DeviceConfig, Namespace, OpaqueConfig, ResourceClaim
from imex_dra.controller.caches import Caches
from tests.controller.claims import claim, configuration, domain
from tests.controller.partition import ELSEWHERE, HERE, member, nvlink_node, partition


@pytest.mark.parametrize(
    ("allocated", "uids"),
    [
        (claim("c", configuration("u1")), {"u1"}),
        (claim("c", configuration("u1"), nodes=()), set()),
        (claim("c", configuration("u1"), driver="gpu.nvidia.com"), set()),
        (claim("c", configuration("u1", driver="gpu.nvidia.com")), set()),
        (claim("c", configuration("u1", "channel"), configuration("u2", "other")), {"u1", "u2"}),
        (claim("c", configuration("")), set()),
        (claim("c", DeviceConfig(opaque=OpaqueConfig("compute-domain.nvidia.com", Raw(b'["u1"]')))), set()),
        (claim("c", DeviceConfig(opaque=OpaqueConfig("compute-domain.nvidia.com"))), set()),
        (claim("c", DeviceConfig()), set()),
        (claim("c", configuration("u1", unknownField=True)), {"u1"}),
    ],
    ids=[
        "allocated",
        "not allocated",
        "allocated from another driver",
        "config of another driver",
        "two ComputeDomains",
        "empty UID",
        "parameters are a list",
        "no parameters",
        "no opaque config",
        "config that the node will reject",
    ],
)
def test_a_claim_belongs_to_the_computedomains_that_its_config_names(
    allocated: ResourceClaim, uids: set[str]
) -> None:
    assert allocated.domain_uids == uids


def test_a_claim_is_on_the_nodes_whose_channel_devices_it_has() -> None:
    assert claim("c", nodes=("n1", "n2")).nodes == {"n1", "n2"}
    assert claim("c", nodes=()).nodes == claim("c", driver="gpu.nvidia.com").nodes == set()


def test_claims_are_found_by_domain_and_by_node_until_they_change() -> None:
    caches = Caches()
    caches.claims.upsert(claim("c1", configuration("uid-job"), nodes=("n1",)))
    caches.claims.upsert(claim("c2", configuration("uid-job"), nodes=("n2",)))
    assert [c.metadata.name for c in caches.claims.by("node", "n2")] == ["c2"]
    assert [c.metadata.name for c in caches.allocated_claims(domain("job"))] == ["c1", "c2"]
    pending = claim("c1", nodes=())
    caches.claims.upsert(
        structs.replace(pending, metadata=structs.replace(pending.metadata, resource_version="2"))
    )
    assert caches.claims.by("node", "n1") == []
    assert [c.metadata.name for c in caches.allocated_claims(domain("job"))] == ["c2"]


def test_a_claim_in_another_namespace_does_not_belong_to_a_computedomain() -> None:
    caches = Caches()
    caches.claims.upsert(claim("c1", configuration("uid-job"), namespace="other"))
    assert caches.allocated_claims(domain("job", namespace="team")) == []


def test_a_computedomain_is_found_by_its_uid() -> None:
    caches = Caches()
    caches.compute_domains.upsert(domain("job"))
    assert caches.compute_domain("uid-job") == domain("job")
    assert caches.compute_domain("uid-other") is None


def test_a_partition_is_found_by_its_nodes_and_by_the_holders_of_its_channels() -> None:
    caches = Caches()
    assigned = ChannelAssignment(3, ChannelState.ASSIGNED, DomainReference("team", "job", "u1"), "")
    released = ChannelAssignment(4, ChannelState.RELEASED, DomainReference("team", "old", "u2"), "")
    caches.partitions.upsert(partition(member("a", 0), channels=(assigned, released)))
    assert [p.metadata.name for p in caches.partitions.by("holder", "u1")] == [HERE]
    assert caches.partitions.by("holder", "u2") == []
    assert caches.partitions_of_node("a") == {HERE}
    caches.nvlink_nodes.upsert(nvlink_node("a", partition=ELSEWHERE))
    caches.nvlink_nodes.upsert(nvlink_node("b", partition=""))
    assert caches.partitions_of_node("a") == {HERE, ELSEWHERE}
    assert caches.partitions_of_node("b") == caches.partitions_of_node("c") == set()
    assert [c.metadata.name for c in caches.nvlink_nodes.by("partition", ELSEWHERE)] == ["a"]


@pytest.mark.parametrize(
    ("mode", "labels", "refused"),
    [
        (AllocationMode.SINGLE, {}, False),
        (AllocationMode.ALL, {}, True),
        (AllocationMode.ALL, {"imex-dra.io/all-channels": "allowed"}, False),
        (AllocationMode.ALL, {"imex-dra.io/all-channels": "true"}, True),
        (AllocationMode.ALL, None, True),
    ],
    ids=["Single", "no label", "allowed", "other value", "unknown namespace"],
)
def test_all_channels_are_refused_unless_the_namespace_allows_them(
    mode: AllocationMode, labels: dict[str, str] | None, refused: bool
) -> None:
    caches = Caches()
    if labels is not None:
        caches.namespaces.upsert(Namespace(ObjectMeta(name="team", uid="n", labels=labels)))
    assert caches.is_refused(domain("job", template="t", mode=mode)) is refused
