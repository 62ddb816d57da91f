"""Which nodes may join a partition, and what the others are told."""

import pytest

from imex_dra.api.nvlinknode import HeldChannel, NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, DomainReference
from imex_dra.api.reasons import Reason
from imex_dra.controller.admission import Admission
from tests.controller.partition import ELSEWHERE, HERE, nvlink_node


def entry(channel: int, uid: str, state: ChannelState = ChannelState.ASSIGNED) -> ChannelAssignment:
    return ChannelAssignment(channel, state, DomainReference("team", uid, uid), "")


ADMISSION = Admission(
    HERE,
    3,
    (entry(5, "a"), entry(6, "b", ChannelState.RELEASED)),
    9,
    {("n", "c"): ["team/rank-0", "team/rank-1"], ("n", "d"): []},
)


@pytest.mark.parametrize(
    "report",
    [
        nvlink_node("n", acknowledged=3),
        nvlink_node("n", acknowledged=4),
        nvlink_node("n", acknowledged=3, imex_partition=HERE),
        nvlink_node("n", acknowledged=3, held=(HeldChannel(HERE, 5, "a"), HeldChannel(HERE, 6, "b"))),
    ],
    ids=["no channels", "later epoch", "daemon in this partition", "channels of this partition"],
)
def test_a_node_that_acknowledged_the_epoch_and_holds_no_foreign_channel_is_admissible(report: NVLinkNode) -> None:
    assert ADMISSION.is_admissible(report)
    assert ADMISSION.refusal(report) is None


@pytest.mark.parametrize("held", [(), (HeldChannel(ELSEWHERE, 5, "a"),)], ids=["no channels", "foreign channel"])
def test_a_node_that_has_not_acknowledged_the_epoch_waits_without_a_message(held: tuple[HeldChannel, ...]) -> None:
    report = nvlink_node("n", acknowledged=2, held=held)
    assert not ADMISSION.is_admissible(report)
    assert ADMISSION.refusal(report) is None


@pytest.mark.parametrize(
    ("held", "holders"),
    [
        (HeldChannel(HERE, 5, "b"), "ComputeDomain b (channel 5 of 7b968a6d.1)"),
        (HeldChannel(HERE, 9, "a"), "ComputeDomain a (channel 9 of 7b968a6d.1)"),
        (HeldChannel(ELSEWHERE, 5, "a"), "ComputeDomain a (channel 5 of 7b968a6d.2)"),
        (HeldChannel(ELSEWHERE, 1, "c"), "pods team/rank-0, team/rank-1 (channel 1 of 7b968a6d.2)"),
        (HeldChannel(ELSEWHERE, 1, "d"), "ComputeDomain d (channel 1 of 7b968a6d.2)"),
    ],
    ids=[
        "channel of another ComputeDomain",
        "unknown channel",
        "channel of another partition",
        "with pods",
        "without pods",
    ],
)
def test_a_node_that_holds_a_foreign_channel_must_be_drained_first(held: HeldChannel, holders: str) -> None:
    report = nvlink_node("n", acknowledged=3, held=(held,))
    refusal = ADMISSION.refusal(report)
    assert not ADMISSION.is_admissible(report)
    assert refusal is not None
    assert refusal.reason is Reason.DRAIN_FIRST
    assert refusal.message() == (
        f"node n cannot join NVLink partition {HERE} yet: it holds channels that are not assigned to the same"
        f" ComputeDomains there: {holders}; delete the pods that use them"
    )


def test_a_node_whose_daemon_still_runs_in_another_partition_waits() -> None:
    report = nvlink_node("n", acknowledged=3, imex_partition=ELSEWHERE)
    refusal = ADMISSION.refusal(report)
    assert not ADMISSION.is_admissible(report)
    assert refusal is not None
    assert refusal.reason is Reason.DAEMON_IN_OTHER_PARTITION
    assert refusal.message() == (
        f"node n cannot join NVLink partition {HERE} yet: its IMEX daemon still runs in {ELSEWHERE}; check that"
        " imex node and the pod of the IMEX daemon run on the node"
    )


def test_a_node_that_another_partition_lists_as_a_member_waits() -> None:
    admission = ADMISSION._replace(other_partitions={"n": ELSEWHERE})
    refusal = admission.refusal(nvlink_node("n", acknowledged=3))
    assert refusal is not None
    assert refusal.reason is Reason.MEMBER_OF_OTHER_PARTITION
    assert admission.is_admissible(nvlink_node("m", acknowledged=3))
