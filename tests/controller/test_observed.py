"""The controller's indexes: what is found by what."""

import pytest
from msgspec import structs

from imex_dra.api.computedomain import AllocationMode
from imex_dra.api.meta import ObjectMeta
from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, DomainReference
from imex_dra.api.views import DeviceConfig, Namespace, OpaqueConfig, ResourceClaim
from imex_dra.controller.observed import Observed, claim_nodes, domain_uids
from tests.controller.claims import claim, configuration, domain
from tests.controller.partition import ELSEWHERE, HERE, card, member, partition


@pytest.mark.parametrize(
    ("given", "uids"),
    [
        (claim("c", configuration("u1")), {"u1"}),
        (claim("c", configuration("u1"), nodes=()), set()),
        (claim("c", configuration("u1"), driver="gpu.nvidia.com"), set()),
        (claim("c", configuration("u1", driver="gpu.nvidia.com")), set()),
        (claim("c", configuration("u1", "channel"), configuration("u2", "other")), {"u1", "u2"}),
        (claim("c", configuration("")), set()),
        (claim("c", DeviceConfig(opaque=OpaqueConfig("compute-domain.nvidia.com", ["u1"]))), set()),
        (claim("c", DeviceConfig(opaque=OpaqueConfig("compute-domain.nvidia.com"))), set()),
        (claim("c", DeviceConfig()), set()),
        (claim("c", configuration("u1", unknownField=True)), {"u1"}),
    ],
    ids=[
        "allocated",
        "not allocated",
        "allocated from another driver",
        "another driver's config",
        "two of them",
        "an empty UID",
        "a list",
        "no parameters",
        "no opaque config",
        "a config that the node will refuse",
    ],
)
def test_a_claim_belongs_to_the_computedomains_that_its_config_names(given: ResourceClaim, uids: set[str]) -> None:
    assert domain_uids(given) == uids


def test_a_claim_is_on_the_nodes_whose_seats_it_has() -> None:
    assert claim_nodes(claim("c", nodes=("n1", "n2"))) == {"n1", "n2"}
    assert claim_nodes(claim("c", nodes=())) == claim_nodes(claim("c", driver="gpu.nvidia.com")) == set()


def test_claims_are_found_by_domain_and_by_node_until_they_change() -> None:
    observed = Observed()
    observed.claims.upsert(claim("c1", configuration("uid-job"), nodes=("n1",)))
    observed.claims.upsert(claim("c2", configuration("uid-job"), nodes=("n2",)))
    assert [c.metadata.name for c in observed.claims.by("node", "n2")] == ["c2"]
    assert [c.metadata.name for c in observed.allocated_claims(domain("job"))] == ["c1", "c2"]
    pending = claim("c1", nodes=())
    observed.claims.upsert(
        structs.replace(pending, metadata=structs.replace(pending.metadata, resource_version="2"))
    )
    assert observed.claims.by("node", "n1") == []
    assert [c.metadata.name for c in observed.allocated_claims(domain("job"))] == ["c2"]


def test_a_claim_of_another_namespace_has_no_part_in_a_computedomain() -> None:
    observed = Observed()
    observed.claims.upsert(claim("c1", configuration("uid-job"), namespace="thieves"))
    assert observed.allocated_claims(domain("job", namespace="team")) == []


def test_a_computedomain_is_found_by_its_uid() -> None:
    observed = Observed()
    observed.domains.upsert(domain("job"))
    assert observed.domain("uid-job") == domain("job")
    assert observed.domain("uid-other") is None


def test_a_partition_is_found_by_its_members_and_by_who_holds_a_channel() -> None:
    observed = Observed()
    resting = ChannelAssignment(3, ChannelState.RESTING, DomainReference("team", "job", "u1"), since="")
    observed.partitions.upsert(partition(member("a", 0), channels=(resting,)))
    assert [p.metadata.name for p in observed.partitions.by("holder", "u1")] == [HERE]
    assert observed.partitions.by("holder", "u2") == []
    assert observed.partitions_of_node("a") == {HERE}
    observed.cards.upsert(card("a", partition=ELSEWHERE))
    observed.cards.upsert(card("b", partition=""))
    assert observed.partitions_of_node("a") == {HERE, ELSEWHERE}
    assert observed.partitions_of_node("b") == observed.partitions_of_node("c") == set()
    assert [c.metadata.name for c in observed.cards.by("partition", ELSEWHERE)] == ["a"]


@pytest.mark.parametrize(
    ("mode", "labels", "refused"),
    [
        (AllocationMode.SINGLE, {}, False),
        (AllocationMode.ALL, {}, True),
        (AllocationMode.ALL, {"imex-dra.io/all-channels": "allowed"}, False),
        (AllocationMode.ALL, {"imex-dra.io/all-channels": "true"}, True),
        (AllocationMode.ALL, None, True),
    ],
    ids=["single", "no label", "allowed", "another value", "no such namespace"],
)
def test_all_channels_are_refused_unless_the_namespace_says_allowed(
    mode: AllocationMode, labels: dict[str, str] | None, refused: bool
) -> None:
    observed = Observed()
    if labels is not None:
        observed.namespaces.upsert(Namespace(ObjectMeta(name="team", uid="n", labels=labels)))
    assert observed.is_refused(domain("job", template="t", mode=mode)) is refused
