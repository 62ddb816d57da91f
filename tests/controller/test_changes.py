"""Which changes lead to a reconcile: all that can alter its outcome, and few others."""

from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain, DomainPartition
from imex_dra.api.meta import Condition
from imex_dra.api.names import RELEASE_ANNOTATION, RELEASE_NOW
from imex_dra.api.nvlinknode import (
    CONNECTED,
    READY,
    Fabric,
    FabricState,
    GpuFabric,
    HeldChannel,
    HostNodeList,
    ImexState,
    Isolation,
    IsolationState,
    NVLinkNode,
)
from imex_dra.api.nvlinkpartition import (
    CHANNELS_REUSABLE,
    ChannelAssignment,
    ChannelState,
    DomainReference,
    MemberState,
    NVLinkPartition,
)
from imex_dra.controller.changes import (
    PartitionChange,
    concerns_domains,
    concerns_partition,
    concerns_partitions,
    concerns_waiting_domains,
    listed_differently,
    partition_change,
    reached_differently,
)
from imex_dra.controller.domainconditions import DomainInputs
from imex_dra.controller.domainstatus import domain_status
from imex_dra.controller.partitionplan import PartitionInputs, plan_partition
from tests.controller.claims import claim, configuration, domain
from tests.controller.partition import ELSEWHERE, HERE, NOW, member, nvlink_node, partition

REPORT = nvlink_node(
    "a", index=0, state=ImexState.READY, applied=1, acknowledged=1, prepared=("uid-claim",), channel_count=2048
)
ASSIGNED = ChannelAssignment(1, ChannelState.ASSIGNED, DomainReference("team", "job", "uid-job"), "")
PARTITION = partition(member("a", 0), member("b", 1), channels=(ASSIGNED,))


def with_status(**fields: Any) -> NVLinkNode:
    return structs.replace(REPORT, status=structs.replace(REPORT.status, **fields))


def condition(type_: str, status: str) -> Condition:
    return Condition(type_, status, "Because", "2026-01-01T00:00:00Z", "because")


REPORT_CHANGES: list[tuple[dict[str, Any], bool, bool]] = [
    ({"fabric": Fabric(FabricState.BROKEN, "a link")}, True, True),
    ({"partition": ELSEWHERE}, True, True),
    ({"address": "10.9.9.9"}, True, False),
    ({"index": 3}, True, True),
    ({"imex_state": ImexState.INITIALIZING}, True, True),
    ({"imex_started_at": "2026-01-01T00:00:00Z"}, False, True),
    ({"driver_version": "580"}, True, False),
    ({"product": "NVIDIA GB200"}, False, False),
    ({"gpu_count": 4}, False, False),
    ({"gpus": (GpuFabric(0, FabricState.BROKEN, "a link"),)}, False, False),
    ({"channel_count": 32}, True, True),
    ({"max_claims": 4}, False, True),
    ({"boot_id": "another"}, True, False),
    ({"host_node_list": HostNodeList("0123456789abcdef", 2)}, True, False),
    ({"imex_partition": HERE}, True, False),
    ({"applied_generation": 2}, True, False),
    ({"acknowledged_epoch": 2}, True, False),
    ({"held_channels": (HeldChannel(HERE, 1, "uid-job"),)}, True, False),
    ({"isolation": Isolation(IsolationState.OPEN, "a plugin")}, False, False),
    ({"unreachable": ("b",)}, True, False),
    ({"prepared_claims": ()}, False, True),
    ({"conditions": (condition(READY, "False"),)}, True, True),
    ({"conditions": (condition(CONNECTED, "False"),)}, True, False),
]


@pytest.mark.parametrize(
    ("fields", "of_partition", "of_domains"),
    REPORT_CHANGES,
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_report_concerns_those_whose_outcome_may_differ(
    fields: dict[str, Any], of_partition: bool, of_domains: bool
) -> None:
    changed = with_status(**fields)
    assert concerns_partition(REPORT, changed) is of_partition
    assert concerns_domains(REPORT, changed) is of_domains
    if not of_partition:
        assert plan(REPORT) == plan(changed)
    if not of_domains and not reached_differently(REPORT, changed):
        assert status(REPORT) == status(changed)


def plan(report: NVLinkNode) -> object:
    inputs = PartitionInputs(HERE, PARTITION.status, 24, {"a": report}, {"a", "b"})
    return plan_partition(inputs, NOW)


def status(report: NVLinkNode) -> object:
    claims = [claim("claim", configuration("uid-job"), nodes=("a",))]
    return domain_status(DomainInputs(domain(), claims, [PARTITION], {"a": report}), NOW)


def test_every_field_of_a_report_was_considered() -> None:
    """A new field must be added to the table above, and to the functions that compare reports."""
    considered = {name for fields, _, _ in REPORT_CHANGES for name in fields}
    assert considered == {field.name for field in structs.fields(REPORT.status)}


def test_a_new_and_a_deleted_report_concern_all() -> None:
    for old, new in ((None, REPORT), (REPORT, None)):
        assert concerns_partition(old, new)
        assert concerns_domains(old, new)


def test_the_number_of_channels_of_one_node_concerns_computedomains_that_wait_on_another_one() -> None:
    many = nvlink_node("b", index=1, state=ImexState.READY, channel_count=2048)
    few = structs.replace(many, status=structs.replace(many.status, channel_count=2))
    waiting, claims = domain("other"), [claim("claim", configuration("uid-other"), nodes=("a",))]

    def cause(report: NVLinkNode) -> str:
        inputs = DomainInputs(waiting, claims, [PARTITION], {"a": REPORT, "b": report})
        return domain_status(inputs, NOW).nodes[0].message

    assert "has no channel" in cause(many)
    assert "has no free channel" in cause(few)
    assert concerns_waiting_domains(many, few)
    assert not concerns_waiting_domains(few, structs.replace(few, status=few.status))
    for old, new in ((None, few), (few, None)):
        assert concerns_waiting_domains(old, new)


def test_who_is_reached_concerns_the_nodes_that_were_added_or_removed() -> None:
    before, after = with_status(unreachable=("b", "c")), with_status(unreachable=("c", "d"))
    assert reached_differently(before, after) == {"b", "d"}
    assert reached_differently(None, after) == {"c", "d"}
    assert reached_differently(after, after) == set()


def test_a_status_write_concerns_only_the_partitions_that_it_lists_differently() -> None:
    before = domain()
    listed = structs.replace(before.status, partitions=(DomainPartition(HERE, 1, nodes=2),))
    after = structs.replace(before, status=listed)
    assert not concerns_partitions(before, after)
    assert listed_differently(before, after) == {HERE}
    more = structs.replace(listed, partitions=(DomainPartition(HERE, 1, nodes=3),))
    assert listed_differently(after, structs.replace(before, status=more)) == set()


def test_the_life_of_a_computedomain_concerns_its_partitions() -> None:
    found = domain()
    assert concerns_partitions(None, found)
    assert concerns_partitions(found, None)
    assert concerns_partitions(found, with_meta(found, deletion_timestamp="2026-01-01T00:00:00Z"))
    assert concerns_partitions(found, with_meta(found, annotations={RELEASE_ANNOTATION: RELEASE_NOW}))
    assert not concerns_partitions(found, with_meta(found, finalizers=("imex-dra.io/computedomain",)))


def with_meta(found: ComputeDomain, **fields: Any) -> ComputeDomain:
    return structs.replace(found, metadata=structs.replace(found.metadata, **fields))


def with_partition(**fields: Any) -> NVLinkPartition:
    return structs.replace(PARTITION, status=structs.replace(PARTITION.status, **fields))


RELEASED = structs.replace(ASSIGNED, state=ChannelState.RELEASED)
BLOCKED = condition(CHANNELS_REUSABLE, "False")


@pytest.mark.parametrize(
    ("after", "change"),
    [
        (with_partition(epoch=7), PartitionChange()),
        (with_partition(generation=7), PartitionChange()),
        (with_partition(conditions=(condition("Ready", "False"),)), PartitionChange()),
        (
            with_partition(members=PARTITION.status.members[:1]),
            PartitionChange(nodes=frozenset("b"), without_channel=True),
        ),
        (
            with_partition(members=(member("a", 0), member("b", 1, MemberState.UNKNOWN))),
            PartitionChange(nodes=frozenset("b")),
        ),
        (
            with_partition(channels=(RELEASED,)),
            PartitionChange(domains=frozenset({"uid-job"}), without_channel=True),
        ),
        (
            with_partition(channels=()),
            PartitionChange(domains=frozenset({"uid-job"}), without_channel=True),
        ),
        (with_partition(pending_reports=("c",)), PartitionChange(without_channel=True)),
        (with_partition(required_generation=3), PartitionChange(without_channel=True)),
        (with_partition(conditions=(BLOCKED,)), PartitionChange(without_channel=True)),
    ],
    ids=[
        "epoch",
        "generation",
        "a condition",
        "a member has left",
        "a member is unknown",
        "a channel is released",
        "a channel is free",
        "reports are pending",
        "member lists are outdated",
        "reuse is blocked",
    ],
)
def test_a_partition_concerns_those_computedomains_whose_outcome_may_differ(
    after: NVLinkPartition, change: PartitionChange
) -> None:
    assert partition_change(PARTITION, after, any_unreachable=False) == change
    assert partition_change(after, PARTITION, any_unreachable=False) == change


def test_a_member_that_is_no_longer_ready_concerns_all_if_somebody_is_unreachable() -> None:
    after = with_partition(members=(member("a", 0), member("b", 1, MemberState.UNKNOWN)))
    assert partition_change(PARTITION, after, any_unreachable=True).nodes == {"a", "b"}
