"""What the controller's metrics say of its caches and queues."""

from collections.abc import Iterable

import pytest
from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain, ComputeDomainStatus, DomainSummary
from imex_dra.api.meta import Condition
from imex_dra.api.metrics import (
    DOMAIN_QUEUE,
    DOMAINS,
    PARTITION_CHANNELS,
    PARTITION_MEMBERS,
    PARTITION_PROBLEMS,
    PARTITION_STATE,
)
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    ChannelState,
    DomainReference,
    MemberState,
    NVLinkPartition,
    PartitionState,
    PartitionSummary,
)
from imex_dra.api.reasons import Reason
from imex_dra.base.metrics import OTHER, Metric, Sample
from imex_dra.controller.caches import Caches
from imex_dra.controller.telemetry import controller_samples
from tests.controller.claims import domain
from tests.controller.partition import HERE, member, nvlink_node, partition


def values(metric: Metric, samples: Iterable[Sample]) -> dict[tuple[str, ...], float]:
    """Those that are not 0."""
    return {sample.labels: sample.value for sample in samples if sample.metric is metric and sample.value}


def condition(type_: str, status: str, reason: str) -> Condition:
    return Condition(type_, status, reason, "a sentence", "2026-01-01T00:00:00Z")


def channel(number: int, state: ChannelState) -> ChannelAssignment:
    return ChannelAssignment(number, state, DomainReference("team", "job", "uid"), "2026-01-01T00:00:00Z")


def rack(*conditions: Condition) -> NVLinkPartition:
    found = partition(
        member("1", 0),
        member("2", 1),
        member("3", 2, MemberState.SUSPENDED),
        channels=(channel(1, ChannelState.ASSIGNED), channel(2, ChannelState.RELEASED)),
    )
    summary = PartitionSummary("2/3", "1", PartitionState.DEGRADED)
    return structs.replace(found, status=structs.replace(found.status, conditions=conditions, summary=summary))


def samples(caches: Caches) -> list[Sample]:
    return list(controller_samples(caches, {DOMAIN_QUEUE: "xyz"}))


def test_a_partition_shows_its_state_members_and_channels() -> None:
    caches = Caches()
    caches.partitions.upsert(rack())
    for node in "123":
        caches.nvlink_nodes.upsert(nvlink_node(node, channel_count=128))
    found = samples(caches)
    assert values(PARTITION_STATE, found) == {(HERE, "DEGRADED"): 1}
    assert values(PARTITION_MEMBERS, found) == {(HERE, "Ready"): 2, (HERE, "Suspended"): 1}
    # Channel 0 is never assigned.
    assert values(PARTITION_CHANNELS, found) == {(HERE, "assigned"): 1, (HERE, "released"): 1, (HERE, "free"): 125}
    assert values(DOMAIN_QUEUE, found) == {(): 3}


@pytest.mark.parametrize(
    ("type_", "status", "is_problem"),
    [
        ("Ready", "False", True),
        ("Ready", "True", False),
        ("NodesAdmitted", "False", True),
        ("CliqueLabels", "True", False),
        ("VersionSkew", "True", True),
        ("VersionSkew", "False", False),
        ("OtherDriver", "True", True),
        ("DeletionBlocked", "False", False),
    ],
)
def test_a_condition_is_a_problem_only_with_its_bad_status(type_: str, status: str, is_problem: bool) -> None:
    caches = Caches()
    caches.partitions.upsert(rack(condition(type_, status, Reason.SEVERAL_VERSIONS)))
    assert bool(values(PARTITION_PROBLEMS, samples(caches))) == is_problem


def serving(name: str, state: str, reason: str) -> ComputeDomain:
    status = ComputeDomainStatus(conditions=(condition("Ready", "False", reason),), summary=DomainSummary(state))
    return structs.replace(domain(name), status=status)


def test_compute_domains_are_counted_by_state_and_reason() -> None:
    caches = Caches()
    for found in (
        serving("one", "NotReady", Reason.NODES_NOT_READY),
        serving("two", "NotReady", Reason.NODES_NOT_READY),
        serving("three", "NoPods", Reason.NO_PODS_YET),
        domain("new"),
    ):
        caches.compute_domains.upsert(found)
    assert values(DOMAINS, samples(caches)) == {
        ("NotReady", "NodesNotReady"): 2,
        ("NoPods", "NoPodsYet"): 1,
        ("Unknown", "Unknown"): 1,
    }


def test_a_status_that_a_user_forged_adds_no_label_values() -> None:
    caches = Caches()
    for number in range(5):
        caches.compute_domains.upsert(serving(f"forged-{number}", f"state {number}", f"Reason{number}"))
    assert values(DOMAINS, samples(caches)) == {("Unknown", OTHER): 5}
