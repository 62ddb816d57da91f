"""Who may join a partition, and the sentence for who may not."""

import pytest

from imex_dra.api.nvlinknode import HeldChannel, NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, DomainReference
from imex_dra.api.reasons import Reason
from imex_dra.controller.admission import Doorkeeper, Refusal
from tests.controller.partition import ELSEWHERE, HERE, card


def entry(channel: int, uid: str, state: ChannelState = ChannelState.ASSIGNED) -> ChannelAssignment:
    return ChannelAssignment(channel, state, DomainReference("team", uid, uid), "")


DOOR = Doorkeeper(
    HERE,
    3,
    (entry(5, "a"), entry(6, "b", ChannelState.RESTING)),
    {("n", "c"): "pods team/rank-0, team/rank-1"},
)


@pytest.mark.parametrize(
    "says",
    [
        card("n", answered=3),
        card("n", answered=3, imex_partition=HERE),
        card("n", answered=3, held=(HeldChannel(HERE, 5, "a"), HeldChannel(HERE, 6, "b"))),
    ],
    ids=["nothing", "its daemon is here", "what the record knows"],
)
def test_with_an_answer_and_nothing_foreign_it_is_admitted(says: NVLinkNode) -> None:
    assert DOOR.refusal(says) is None


def test_without_an_answer_it_waits_and_there_is_nothing_to_say() -> None:
    assert DOOR.refusal(card("n", answered=2)) == Refusal("n", None)


@pytest.mark.parametrize(
    ("held", "holders"),
    [
        (HeldChannel(HERE, 5, "b"), "ComputeDomain b (channel 5 of 7b968a6d.1)"),
        (HeldChannel(HERE, 9, "a"), "ComputeDomain a (channel 9 of 7b968a6d.1)"),
        (HeldChannel(ELSEWHERE, 5, "a"), "ComputeDomain a (channel 5 of 7b968a6d.2)"),
        (HeldChannel(ELSEWHERE, 1, "c"), "pods team/rank-0, team/rank-1 (channel 1 of 7b968a6d.2)"),
    ],
    ids=["another's number", "an unknown number", "another partition's", "with pods"],
)
def test_with_what_belongs_to_others_here_it_is_drained_first(held: HeldChannel, holders: str) -> None:
    assert DOOR.refusal(card("n", answered=3, held=(held,))) == Refusal(
        "n",
        Reason.DRAIN_FIRST,
        f"node n may not join NVLink partition {HERE} yet, because processes on it hold channels that belong to"
        f" others there: {holders}; delete the pods that use them",
    )


def test_while_its_daemon_is_still_in_the_old_partition_it_waits() -> None:
    refusal = DOOR.refusal(card("n", answered=3, imex_partition=ELSEWHERE))
    assert refusal is not None
    assert refusal.reason is Reason.DAEMON_ELSEWHERE
    assert refusal.words == (
        f"node n may not join NVLink partition {HERE} yet, because its IMEX daemon still runs in {ELSEWHERE};"
        " check that imex daemon runs on it"
    )
