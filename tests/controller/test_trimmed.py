"""What the caches keep of an object answers all questions of the controller as the whole object would."""

import pytest
from msgspec import structs

from imex_dra.api.meta import Condition, ObjectMeta, OwnerReference
from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.api.nvlinknode import READY, HeldChannel, ImexState
from imex_dra.api.views import ClaimDevices, ClaimSpec, Node, NodeCondition, NodeStatus, ResourceClaim
from imex_dra.controller.caches import Caches, clique_label, is_node_ready, pods_of, reported_partitions
from imex_dra.controller.domainnodes import consumers
from imex_dra.controller.trimmed import trimmed_claim, trimmed_node, trimmed_nvlink_node
from tests.controller.claims import claim, configuration
from tests.controller.partition import HERE, nvlink_node

OWN = configuration("uid-job", "channel")
OTHER = configuration("uid-other", driver="gpu.example.com")
POD = OwnerReference("v1", "Pod", "rank-0", "uid-rank-0", controller=True)


def waiting(*owners: OwnerReference) -> ResourceClaim:
    found = claim("waiting", nodes=())
    meta = structs.replace(found.metadata, owner_references=owners)
    return structs.replace(found, metadata=meta, spec=ClaimSpec(ClaimDevices(None, (OWN, OTHER))))


CLAIMS = {
    "allocated": claim("c", OWN, nodes=("n1", "n2"), pods=("rank-0", "rank-1")),
    "of two ComputeDomains": claim("c", OWN, configuration("uid-second"), nodes=("n1",)),
    "of another driver": claim("c", OTHER, nodes=("n1",), driver="gpu.example.com"),
    "with an invalid configuration": claim("c", configuration("uid-job", more="unknown"), nodes=("n1",)),
    "waiting": waiting(POD),
    "waiting, of no pod": waiting(),
    "being deleted": structs.replace(
        waiting(POD), metadata=structs.replace(waiting(POD).metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    ),
}


@pytest.mark.parametrize("whole", CLAIMS.values(), ids=CLAIMS)
def test_a_trimmed_claim(whole: ResourceClaim) -> None:
    trimmed = trimmed_claim(whole)
    assert trimmed.nodes == whole.nodes
    assert [result.pool for result in trimmed.results] == [result.pool for result in whole.results]
    assert trimmed.domain_uids == whole.domain_uids
    assert trimmed.waits_for_domain_uids == whole.waits_for_domain_uids
    assert trimmed.pods == whole.pods
    assert consumers([trimmed]) == consumers([whole])
    assert pods_of([trimmed]) == pods_of([whole])
    for field in ("name", "namespace", "uid", "resource_version", "deletion_timestamp"):
        assert getattr(trimmed.metadata, field) == getattr(whole.metadata, field)
    assert trimmed_claim(trimmed) == trimmed


@pytest.mark.parametrize("ready", ["True", "False", None])
def test_a_trimmed_node(ready: str | None) -> None:
    conditions = [NodeCondition("DiskPressure", "True")] + ([NodeCondition("Ready", ready)] if ready else [])
    labels = {CLIQUE_LABEL: HERE, "example.com/other": "x"}
    whole = Node(ObjectMeta(name="a", uid="u", resource_version="3", labels=labels), NodeStatus((*conditions,)))
    trimmed = trimmed_node(whole)
    assert is_node_ready(trimmed) == is_node_ready(whole)
    assert clique_label(trimmed) == {HERE}
    assert trimmed.metadata == structs.replace(whole.metadata, labels={CLIQUE_LABEL: HERE})
    assert trimmed_node(trimmed) == trimmed
    assert clique_label(trimmed_node(Node(ObjectMeta(name="a")))) == set()


def test_a_trimmed_report_lacks_only_conditions_other_than_ready() -> None:
    found = nvlink_node(
        "a",
        index=2,
        state=ImexState.READY,
        held=(HeldChannel(HERE, 3, "u"),),
        unreachable=("b",),
        prepared=("p",),
        driver_version="580",
        imex_partition=HERE,
    )
    conditions = tuple(Condition(type_, "True", "Because", "") for type_ in (READY, "Connected"))
    whole = structs.replace(found, status=structs.replace(found.status, conditions=conditions))
    trimmed = trimmed_nvlink_node(whole)
    assert trimmed.status == structs.replace(whole.status, conditions=conditions[:1])
    assert trimmed.metadata == whole.metadata
    assert reported_partitions(trimmed) == reported_partitions(whole)


def test_the_caches_trim_what_is_written_to_them() -> None:
    caches = Caches()
    caches.nodes.upsert(Node(ObjectMeta(name="a", uid="u", labels={"example.com/other": "x"})))
    (node,) = caches.nodes.values()
    assert node.metadata.labels == {}
