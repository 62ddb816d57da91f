"""When a number that was given back is free again, and when it is worth asking."""

import pytest

from imex_dra.api.nvlinknode import HeldChannel, NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, DomainReference
from imex_dra.controller.recall import Answers, in_the_way, is_free, next_recall
from tests.controller.partition import ELSEWHERE, HERE, card

HELD = (HeldChannel(HERE, 5, "uid-a"),)


def resting(channel: int = 5, recall: int = 3) -> ChannelAssignment:
    return ChannelAssignment(
        channel, ChannelState.RESTING, DomainReference("team", "a", "uid-a"), "2026-01-01T00:00:00Z", recall=recall
    )


def assigned(channel: int) -> ChannelAssignment:
    return ChannelAssignment(channel, ChannelState.ASSIGNED, DomainReference("team", "b", "uid-b"), "")


def answers(*cards: NVLinkNode, members: str = "ab") -> Answers:
    return Answers(HERE, tuple(members), {card.metadata.name: card for card in cards})


@pytest.mark.parametrize(
    ("second", "free"),
    [
        (card("b", answered=4), True),
        (card("b", answered=7), True),
        (card("b", answered=3), False),
        (card("b", answered=4, held=HELD), False),
        (card("b", answered=4, held=(HeldChannel(ELSEWHERE, 5, "uid-a"),)), True),
        (card("b", answered=4, held=(HeldChannel(HERE, 6, "uid-a"),)), True),
        (card("b", answered=9, partition=ELSEWHERE), False),
        (card("c", answered=9), False),
    ],
    ids=["answered", "later", "too early", "holds", "another's 5", "another number", "moved", "no card"],
)
def test_a_number_is_free_when_every_member_answered_a_later_recall_and_nobody_holds_it(
    second: NVLinkNode, free: bool
) -> None:
    assert is_free(resting(), answers(card("a", answered=4), second)) is free


def test_who_is_no_member_need_not_answer_but_must_not_hold_it() -> None:
    both = card("a", answered=4), card("b", answered=4)
    assert is_free(resting(), answers(*both, card("c")))
    assert not is_free(resting(), answers(*both, card("c", held=HELD)))
    assert not is_free(resting(), answers(*both, card("c", partition=ELSEWHERE, held=HELD)))


def test_what_is_assigned_is_not_free() -> None:
    assert not is_free(assigned(5), answers(card("a", answered=9), members="a"))


@pytest.mark.parametrize(
    ("entries", "in_vain", "asked"),
    [
        ([resting(1)], False, False),
        ([resting(1)], True, True),
        ([resting(1), resting(2)], False, True),
        ([resting(1, recall=2), resting(2)], False, False),
        ([resting(1, recall=2)], True, False),
        ([assigned(1), assigned(2), assigned(3)], True, False),
        ([], True, False),
    ],
    ids=["few rest", "somebody asks", "a quarter", "asked before", "only those", "nothing rests", "nothing"],
)
def test_members_are_asked_when_it_is_worth_a_write_of_each(
    entries: list[ChannelAssignment], in_vain: bool, asked: bool
) -> None:
    everybody = answers(card("a", answered=3), card("b", answered=3))
    assert next_recall(3, entries, everybody, count=9, in_vain=in_vain) == 3 + asked


def test_nobody_is_asked_again_while_a_question_is_open() -> None:
    half = answers(card("a", answered=3), card("b", answered=2))
    assert next_recall(3, [resting(1)], half, count=9, in_vain=True) == 3


def test_who_is_in_the_way_is_named_with_what_keeps_it() -> None:
    cards = card("a", answered=4, held=HELD), card("b", answered=3)
    assert in_the_way([resting(5), resting(6), resting(7, recall=4)], 4, answers(*cards, members="abc")) == (
        2,
        [
            "b has not answered recall 4 (bring it back; if it is switched off for good, delete its Node)",
            "c says nothing (bring it back; if it is switched off for good, delete its Node)",
            "a holds channel 5 (delete the pod that uses it)",
        ],
    )
    assert in_the_way([assigned(5)], 4, answers(members="abc")) == (0, [])
