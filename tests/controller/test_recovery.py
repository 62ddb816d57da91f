"""A partition status that was lost or restored: detected, completed, and closed until every node has reported."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain, ComputeDomainSpec, ComputeDomainStatus, DomainPartition
from imex_dra.api.meta import AnnotatedMeta
from imex_dra.api.nvlinknode import FabricState, HeldChannel, NVLinkNode
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    ChannelState,
    DomainReference,
    MemberState,
    NVLinkPartitionStatus,
)
from imex_dra.controller.evidence import DISPUTED, merge_evidence
from imex_dra.controller.plausibility import Counters
from imex_dra.controller.recovery import kept_members, lagging, reset_if_stale, still_pending
from tests.controller.partition import ELSEWHERE, HERE, NOW, member, nvlink_node

STATUS = NVLinkPartitionStatus(generation=5, members=(member("a", 0),), epoch=3)
LONG_AGO = datetime.fromtimestamp(1, UTC)
"""With it, counters that start at the time are as small as those of the reports."""


def domain(uid: str, *channels: int, partition: str = HERE) -> ComputeDomain:
    status = ComputeDomainStatus(partitions=tuple(DomainPartition(partition, channel) for channel in channels))
    return ComputeDomain(AnnotatedMeta(name=uid, namespace="team", uid=uid), ComputeDomainSpec(), status)


def by_name(*nvlink_nodes: NVLinkNode) -> dict[str, NVLinkNode]:
    return {one.metadata.name: one for one in nvlink_nodes}


def entry(channel: int, uid: str, state: ChannelState = ChannelState.ASSIGNED) -> ChannelAssignment:
    return ChannelAssignment(channel, state, DomainReference("team", uid, uid), "2026-01-01T00:00:00Z")


def test_a_status_that_no_node_contradicts_is_kept() -> None:
    reports = by_name(
        nvlink_node("a", acknowledged=3, applied=5),
        nvlink_node("b", acknowledged=0),
        nvlink_node("c", partition=ELSEWHERE, acknowledged=9),
    )
    assert reset_if_stale(HERE, STATUS, reports, [domain("d", 4)], {"x"}, LONG_AGO) == STATUS


@pytest.mark.parametrize(
    "proof",
    [nvlink_node("b", acknowledged=4), nvlink_node("b", applied=6)],
    ids=["later epoch", "later member list"],
)
def test_a_status_is_reset_if_a_node_knows_a_later_one(proof: NVLinkNode) -> None:
    after = reset_if_stale(HERE, STATUS, by_name(nvlink_node("a", acknowledged=3), proof), [], {"x"}, LONG_AGO)
    assert after.epoch == max(3, proof.status.acknowledged_epoch) + 2
    assert after.pending_reports == ("a", "b", "x")
    assert after.generation == after.required_generation == max(5, proof.status.applied_generation) + 1
    unchanged = structs.replace(after, epoch=3, generation=5, pending_reports=(), required_generation=0)
    assert unchanged == STATUS


def test_a_status_is_reset_if_the_leader_knows_that_it_wrote_a_later_one() -> None:
    reports = by_name(nvlink_node("a", acknowledged=3, applied=5))
    assert reset_if_stale(HERE, STATUS, reports, [], (), LONG_AGO, Counters(3, 5)) == STATUS
    after = reset_if_stale(HERE, STATUS, reports, [], (), LONG_AGO, Counters(8, 9))
    assert (after.epoch, after.generation, after.pending_reports) == (10, 10, ("a",))


HOLDING = HeldChannel(HERE, 7, "job")


@pytest.mark.parametrize(
    ("status", "holder", "is_stale"),
    [
        (STATUS, nvlink_node("a", held=(HOLDING,)), True),
        (structs.replace(STATUS, channels=(entry(7, "other"),)), nvlink_node("a", held=(HOLDING,)), True),
        (structs.replace(STATUS, channels=(entry(7, "job"),)), nvlink_node("a", held=(HOLDING,)), False),
        (
            structs.replace(STATUS, channels=(entry(7, "job", ChannelState.RELEASED),)),
            nvlink_node("a", held=(HOLDING,)),
            False,
        ),
        (structs.replace(STATUS, channels=(entry(7, ""),)), nvlink_node("a", held=(HOLDING,)), True),
        (STATUS, nvlink_node("b", held=(HOLDING,)), False),
        (STATUS, nvlink_node("a", held=(HeldChannel(ELSEWHERE, 7, "job"),)), False),
        (
            structs.replace(STATUS, members=(member("a", 0, MemberState.SUSPENDED),)),
            nvlink_node("a", held=(HOLDING,)),
            False,
        ),
    ],
    ids=[
        "nothing is assigned",
        "assigned to another ComputeDomain",
        "assigned to this one",
        "released",
        "not assigned",
        "the holder is not a member",
        "the channel of another partition",
        "the holder is suspended",
    ],
)
def test_a_member_with_a_channel_that_the_status_does_not_know_proves_a_backup(
    status: NVLinkPartitionStatus, holder: NVLinkNode, is_stale: bool
) -> None:
    """Assignments change neither the epoch nor the generation."""
    after = reset_if_stale(HERE, status, by_name(holder), [], (), LONG_AGO)
    assert (after != status) is is_stale
    assert bool(after.pending_reports) is is_stale


def test_a_channel_in_dispute_proves_nothing() -> None:
    disputed = structs.replace(entry(7, ""), compute_domain=DISPUTED, state=ChannelState.RELEASED)
    status = structs.replace(STATUS, channels=(disputed,))
    assert reset_if_stale(HERE, status, by_name(nvlink_node("a", held=(HOLDING,))), [], (), LONG_AGO) == status


def test_a_status_that_recovers_is_not_reset_again_by_what_nodes_hold() -> None:
    status = structs.replace(STATUS, pending_reports=("a",))
    assert reset_if_stale(HERE, status, by_name(nvlink_node("a", held=(HOLDING,))), [], (), LONG_AGO) == status


def running(node: str, index: int, applied: int, **more: Any) -> NVLinkNode:
    return nvlink_node(node, index=index, applied=applied, imex_partition=HERE, **more)


def test_a_recovering_partition_keeps_the_members_whose_daemons_run_with_the_latest_list() -> None:
    stale = [member("a", 0), member("b", 1), member("c", 2), member("e", 4, MemberState.LEAVING)]
    reports = by_name(
        running("a", 0, 9),
        running("b", 1, 8),
        running("d", 3, 9),
        nvlink_node("e", index=4, applied=9),
        running("x", 2, 9, partition=ELSEWHERE),
    )
    kept = kept_members(HERE, stale, reports, set(), 9)
    assert [(m.node, m.index, m.state) for m in kept] == [
        ("a", 0, MemberState.READY),
        ("b", 1, MemberState.SUSPENDED),
        ("c", 2, MemberState.SUSPENDED),
        ("d", 3, MemberState.JOINING),
    ]


def test_a_report_has_priority_over_a_stale_member_and_the_later_list_over_an_older_one() -> None:
    stale = [member("a", 0), member("b", 1)]
    reports = by_name(running("b", 0, 9), running("c", 0, 8), running("d", 5, 9, address=""))
    assert [(m.node, m.index) for m in kept_members(HERE, stale, reports, set(), 9)] == [("b", 0)]


def test_a_suspended_member_of_a_restored_status_stays_suspended_while_its_node_is_not_ready() -> None:
    stale = [member("a", 0), member("b", 1, MemberState.SUSPENDED, since="2026-01-01T00:00:00Z")]
    reports = by_name(running("a", 0, 9), running("b", 1, 9))
    assert kept_members(HERE, stale, reports, {"b"}, 9)[1] == structs.replace(stale[1], suspended_epoch=9)
    assert kept_members(HERE, stale, reports, set(), 9)[1].state is MemberState.JOINING


@pytest.mark.parametrize(
    ("reports", "domains", "pending_reports"),
    [
        (by_name(nvlink_node("a")), [], ()),
        (by_name(nvlink_node("a", acknowledged=7)), [], ("a", "x")),
        (by_name(nvlink_node("a", applied=7)), [], ("a", "x")),
        (by_name(nvlink_node("a")), [domain("d", 4)], ("a", "x")),
        (by_name(nvlink_node("a")), [domain("d", 4, partition=ELSEWHERE)], ()),
        (by_name(nvlink_node("a", held=(HeldChannel(HERE, 1, "d"),))), [], ("a", "x")),
        (by_name(nvlink_node("a", held=(HeldChannel(ELSEWHERE, 1, "d"),))), [], ()),
    ],
    ids=[
        "no trace",
        "a node acknowledged an epoch",
        "a daemon applied a member list",
        "a ComputeDomain lists a channel",
        "a ComputeDomain lists a channel of another partition",
        "a node holds a channel",
        "a node holds a channel of another partition",
    ],
)
def test_a_new_status_waits_for_reports_if_the_partition_was_used_before(
    reports: dict[str, NVLinkNode], domains: list[ComputeDomain], pending_reports: tuple[str, ...]
) -> None:
    after = reset_if_stale(HERE, NVLinkPartitionStatus(), reports, domains, {"x"}, LONG_AGO)
    known = max(reports["a"].status.acknowledged_epoch, 1)
    assert after.epoch == (known + 2 if pending_reports else 1)
    assert after.pending_reports == pending_reports


@pytest.mark.parametrize(
    "reports", [{}, by_name(nvlink_node("a", acknowledged=7, applied=9))], ids=["new", "lost"]
)
def test_the_counters_of_a_new_status_are_above_those_of_nodes_that_do_not_report(
    reports: dict[str, NVLinkNode],
) -> None:
    """A node that is off may know higher counters of an earlier object than the nodes that report."""
    after = reset_if_stale(HERE, NVLinkPartitionStatus(), reports, [], {"x"}, NOW)
    assert min(after.epoch, after.generation) >= NOW.timestamp()


def test_a_status_is_reset_if_it_lacks_a_channel_that_the_leader_assigned() -> None:
    """The node that got the channel may not have reported it yet."""
    written = structs.replace(STATUS, channels=(entry(7, "job"),))
    after = reset_if_stale(HERE, STATUS, {}, [], (), LONG_AGO, Counters.of(written))
    assert after.pending_reports == ("a",)
    assert reset_if_stale(HERE, written, {}, [], (), LONG_AGO, Counters.of(written)) == written
    assert reset_if_stale(HERE, after, {}, [], (), LONG_AGO, Counters.of(after)) == after


@pytest.mark.parametrize(
    ("report", "pending"),
    [
        (None, True),
        (nvlink_node("a", acknowledged=2), True),
        (nvlink_node("a", acknowledged=3), False),
        (nvlink_node("a", acknowledged=9, partition=""), True),
        (nvlink_node("a", partition=ELSEWHERE), False),
        (nvlink_node("a", partition="", fabric=FabricState.NONE), False),
    ],
    ids=[
        "no NVLinkNode",
        "not acknowledged",
        "acknowledged",
        "partition not known",
        "in another partition",
        "no fabric",
    ],
)
def test_a_report_is_pending_until_the_node_acknowledged_or_is_certainly_elsewhere(
    report: NVLinkNode | None, pending: bool
) -> None:
    status = structs.replace(STATUS, pending_reports=("a", "deleted"))
    expected = ("a",) if pending else ()
    assert still_pending(HERE, status, by_name(report) if report else {}, {"a"}) == expected


def test_members_lag_until_they_applied_the_required_member_list() -> None:
    members = [member(node, index) for index, node in enumerate("abc")]
    members += [member("d", 3, MemberState.LEAVING), member("e", 4, MemberState.SUSPENDED)]
    reports = by_name(nvlink_node("a", applied=6), nvlink_node("b", applied=5))
    assert lagging(6, members, reports) == ["b", "c"]
    assert lagging(0, members, reports) == []


def test_channels_are_recovered_from_other_objects_and_contradictory_ones_are_released() -> None:
    held = (HeldChannel(HERE, 1, "a"), HeldChannel(HERE, 6, "e"), HeldChannel(HERE, 7, "deleted"))
    more = (HeldChannel(HERE, 8, "a"), HeldChannel(HERE, 9, "old"), HeldChannel(ELSEWHERE, 10, "a"))
    domains = [domain("a", 1), domain("b", 2), domain("c", 2), domain("d", 5, partition=ELSEWHERE), domain("e")]
    entries = merge_evidence(
        HERE,
        (entry(9, "f"),),
        domains,
        [nvlink_node("n", held=held), nvlink_node("m", held=more)],
        epoch=4,
        now=NOW,
    )
    assert [(e.channel, e.state.value, e.compute_domain.uid) for e in entries] == [
        (1, "Assigned", "a"),
        (2, "Released", ""),
        (6, "Assigned", "e"),
        (7, "Released", "deleted"),
        (8, "Released", "a"),
        (9, "Released", ""),
    ]
    assert {e.released_epoch for e in entries if e.state is ChannelState.RELEASED} == {4}
    assert all(e.assigned_at for e in entries)


def test_the_channel_of_a_computedomain_that_is_being_deleted_is_not_assigned_again() -> None:
    deleting = domain("a", 1)
    meta = structs.replace(deleting.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    entries = merge_evidence(HERE, (), [structs.replace(deleting, metadata=meta)], [], epoch=4, now=NOW)
    assert [(e.channel, e.state.value, e.compute_domain.uid) for e in entries] == [(1, "Released", "a")]


def test_evidence_does_not_change_entries_that_it_agrees_with() -> None:
    released = structs.replace(entry(2, "b", ChannelState.RELEASED), released_epoch=1)
    known = (entry(1, "a"), released)
    report = nvlink_node("n", held=(HeldChannel(HERE, 1, "a"), HeldChannel(HERE, 2, "b")))
    assert merge_evidence(HERE, known, [domain("a", 1)], [report], epoch=4, now=NOW) == known


@pytest.mark.parametrize("state", ChannelState)
@pytest.mark.parametrize(
    ("held_by", "expected"),
    [("job", ("Assigned", "job")), ("gone", ("Released", ""))],
    ids=["only the present owner holds it", "the former owner still holds it"],
)
def test_a_backup_from_before_a_reuse_does_not_dispute_the_present_owner(
    state: ChannelState, held_by: str, expected: tuple[str, str]
) -> None:
    """Found by the simulation: the job lost its channel, and its next pods got another one."""
    report = nvlink_node("n", held=(HeldChannel(HERE, 3, held_by),))
    entries = merge_evidence(HERE, (entry(3, "gone", state),), [domain("job", 3)], [report], epoch=4, now=NOW)
    assert [(e.channel, e.state.value, e.compute_domain.uid) for e in entries] == [(3, *expected)]


def test_a_channel_that_two_existing_computedomains_list_stays_disputed() -> None:
    domains = [domain("a", 3), domain("b", 3)]
    entries = merge_evidence(HERE, (entry(3, "a"),), domains, [], epoch=4, now=NOW)
    assert [(e.channel, e.state.value, e.compute_domain.uid) for e in entries] == [(3, "Released", "")]
