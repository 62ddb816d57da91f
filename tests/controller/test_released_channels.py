"""When a released channel is reusable, and when the epoch is incremented."""

from datetime import timedelta

import pytest
from msgspec import structs

from imex_dra.api.nvlinknode import HeldChannel, NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, DomainReference
from imex_dra.base.clock import rfc3339
from imex_dra.controller.epochs import (
    BATCH,
    PATIENCE,
    EpochPlan,
    NodeReports,
    blockers,
    is_reusable,
    next_epoch,
)
from tests.controller.partition import ELSEWHERE, HERE, NOW, nvlink_node

HELD = (HeldChannel(HERE, 5, "uid-a"),)


def released(channel: int = 5, epoch: int = 3, age: float = 0) -> ChannelAssignment:
    return ChannelAssignment(
        channel,
        ChannelState.RELEASED,
        DomainReference("team", "a", "uid-a"),
        "2025-01-01T00:00:00Z",
        released_at=rfc3339(NOW - timedelta(seconds=age)),
        released_epoch=epoch,
    )


def assigned(channel: int) -> ChannelAssignment:
    return ChannelAssignment(channel, ChannelState.ASSIGNED, DomainReference("team", "b", "uid-b"), "")


def reports(
    *nvlink_nodes: NVLinkNode, members: str = "ab", suspended: str = "", expelled: str = ""
) -> NodeReports:
    """`suspended`: in epoch 6."""
    by_name = {report.metadata.name: report for report in nvlink_nodes}
    return NodeReports(HERE, tuple(members), by_name, dict.fromkeys(suspended, 6), set(expelled))


@pytest.mark.parametrize(
    ("second", "reusable"),
    [
        (nvlink_node("b", acknowledged=4), True),
        (nvlink_node("b", acknowledged=7), True),
        (nvlink_node("b", acknowledged=3), False),
        (nvlink_node("b", acknowledged=4, held=HELD), False),
        (nvlink_node("b", acknowledged=4, held=(HeldChannel(ELSEWHERE, 5, "uid-a"),)), True),
        (nvlink_node("b", acknowledged=4, held=(HeldChannel(HERE, 6, "uid-a"),)), True),
        (nvlink_node("b", acknowledged=9, partition=ELSEWHERE), False),
        (nvlink_node("c", acknowledged=9), False),
    ],
    ids=[
        "acknowledged the next epoch",
        "acknowledged a later epoch",
        "acknowledged the epoch of the release",
        "holds the channel",
        "holds the channel of another partition",
        "holds another channel",
        "moved to another partition",
        "has no NVLinkNode",
    ],
)
def test_a_released_channel_is_reusable_when_every_member_acknowledged_a_later_epoch_and_no_node_holds_it(
    second: NVLinkNode, reusable: bool
) -> None:
    assert is_reusable(released(), reports(nvlink_node("a", acknowledged=4), second)) is reusable


def test_a_node_that_is_not_a_member_need_not_acknowledge_but_must_not_hold_the_channel() -> None:
    members = nvlink_node("a", acknowledged=4), nvlink_node("b", acknowledged=4)
    assert is_reusable(released(), reports(*members, nvlink_node("c")))
    assert not is_reusable(released(), reports(*members, nvlink_node("c", held=HELD)))
    assert not is_reusable(released(), reports(*members, nvlink_node("c", partition=ELSEWHERE, held=HELD)))


def test_an_assigned_channel_is_not_reusable() -> None:
    assert not is_reusable(assigned(5), reports(nvlink_node("a", acknowledged=9), members="a"))


@pytest.mark.parametrize(
    ("entries", "unmet_demand", "planned"),
    [
        ([released(1)], False, EpochPlan(3, PATIENCE)),
        ([released(1, age=20), released(2)], False, EpochPlan(3, PATIENCE - 20)),
        ([released(1, age=PATIENCE), released(2)], False, EpochPlan(4)),
        ([released(1)], True, EpochPlan(4)),
        ([released(channel) for channel in range(BATCH - 1)], False, EpochPlan(3, PATIENCE)),
        ([released(channel) for channel in range(BATCH)], False, EpochPlan(4)),
        ([released(channel, epoch=2) for channel in range(BATCH)], False, EpochPlan(3)),
        ([released(1, epoch=2, age=PATIENCE)], True, EpochPlan(3)),
        ([assigned(1), assigned(2), assigned(3)], True, EpochPlan(3)),
        ([], True, EpochPlan(3)),
    ],
    ids=[
        "one is released",
        "the oldest release waits",
        "a release has waited long enough",
        "a ComputeDomain waits",
        "almost a batch is released",
        "a batch is released",
        "a batch was released in an earlier epoch",
        "all were released in an earlier epoch",
        "none is released",
        "no channels",
    ],
)
def test_the_epoch_is_incremented_when_it_is_worth_one_write_per_node(
    entries: list[ChannelAssignment], unmet_demand: bool, planned: EpochPlan
) -> None:
    current = reports(nvlink_node("a", acknowledged=3), nvlink_node("b", acknowledged=3))
    assert next_epoch(3, entries, current, unmet_demand=unmet_demand, now=NOW) == planned


@pytest.mark.parametrize(
    ("suspended", "expelled", "epoch"),
    [("", "", 3), ("b", "", 4), ("ab", "", 3), ("a", "", 3), ("b", "a", 3)],
    ids=["none suspended", "the slow one", "all", "the fast one", "the other one is not believed"],
)
def test_the_epoch_waits_for_every_member_that_is_not_suspended_and_for_at_least_one(
    suspended: str, expelled: str, epoch: int
) -> None:
    current = reports(
        nvlink_node("a", acknowledged=3),
        nvlink_node("b", acknowledged=2),
        suspended=suspended,
        expelled=expelled,
    )
    assert next_epoch(3, [released(1)], current, unmet_demand=True, now=NOW).epoch == epoch


def test_the_epoch_of_a_partition_without_members_stays() -> None:
    assert next_epoch(3, [released(1)], reports(members=""), unmet_demand=True, now=NOW) == EpochPlan(3)


def test_a_suspended_member_blocks_what_was_released_after_its_acknowledgment_and_what_it_holds() -> None:
    dead = nvlink_node("b", acknowledged=4, held=(HeldChannel(HERE, 7, "uid-a"),))
    current = reports(nvlink_node("a", acknowledged=9), dead, suspended="b")
    assert is_reusable(released(5, epoch=3), current)
    assert not is_reusable(released(5, epoch=4), current)
    assert not is_reusable(released(7, epoch=3), current)


def test_a_suspended_member_does_not_block_what_was_assigned_in_a_later_epoch_than_its_suspension() -> None:
    dead = nvlink_node("b", acknowledged=4, held=(HeldChannel(HERE, 7, "uid-a"),))
    live = nvlink_node("a", acknowledged=9)
    late = structs.replace(released(5, epoch=8), assigned_epoch=7)
    assert is_reusable(late, reports(live, dead, suspended="b"))
    assert not is_reusable(structs.replace(late, assigned_epoch=6), reports(live, dead, suspended="b"))
    assert not is_reusable(late, reports(live, dead)), "it is Unknown only"
    assert not is_reusable(late, reports(nvlink_node("a", acknowledged=8), dead, suspended="b"))
    assert not is_reusable(structs.replace(late, channel=7), reports(live, dead, suspended="b"))


def test_an_expelled_node_acknowledges_nothing_but_holds_what_it_says() -> None:
    members = nvlink_node("a", acknowledged=9), nvlink_node("b", acknowledged=9)
    assert not is_reusable(released(), reports(*members, expelled="b"))
    assert not is_reusable(released(), reports(*members, nvlink_node("c", held=HELD), expelled="c"))


def test_blockers_name_the_node_the_cause_and_the_next_step() -> None:
    current = reports(nvlink_node("a", acknowledged=4, held=HELD), nvlink_node("b", acknowledged=3), members="abc")
    assert blockers([released(5), released(6), released(7, epoch=4)], 4, current) == (
        2,
        [
            "b has not acknowledged epoch 4 (start it; if it will not return, run imex forget-node)",
            "c does not report (start it; if it will not return, run imex forget-node)",
            "a holds channel 5 (delete the pod that uses it)",
        ],
    )
    assert blockers([assigned(5)], 4, reports(members="abc")) == (0, [])
