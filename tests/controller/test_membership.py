"""Who joins, who stays, who leaves, and on what evidence."""

import pytest

from imex_dra.api.nvlinknode import FabricState, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import Member, MemberState
from imex_dra.controller.membership import Roster, plan_members
from tests.controller.partition import ELSEWHERE, HERE, card, member


def plan(
    roster: Roster, *cards: NVLinkNode, nodes: set[str] | None = None, slots: int = 4
) -> tuple[Roster, dict[str, Member]]:
    """Every node with a card is there, unless `nodes` says who is."""
    by_node = {c.metadata.name: c for c in cards}
    planned = plan_members(
        HERE, roster, slots=slots, cards=by_node, nodes=by_node.keys() if nodes is None else nodes
    )
    return planned, {m.node: m for m in planned.members}


def ready(node: str, slot: int, applied: int) -> NVLinkNode:
    return card(node, slot=slot, state=ImexState.READY, applied=applied)


EMPTY = Roster((), 0)
PAIR = Roster((member("a", 0), member("b", 1)), 5)
LEFT = MemberState.LEAVING


def test_newcomers_take_the_lowest_free_slots_in_the_order_of_their_names() -> None:
    planned, members = plan(EMPTY, card("c"), card("a"), card("b"))
    assert [(m.node, m.slot, m.state) for m in planned.members] == [
        ("a", 0, MemberState.JOINING),
        ("b", 1, MemberState.JOINING),
        ("c", 2, MemberState.JOINING),
    ]
    assert members["a"].address == "10.0.0.a"
    assert planned.generation == 1


@pytest.mark.parametrize(
    "stranger",
    [
        card("x", partition=ELSEWHERE),
        card("x", fabric=FabricState.PENDING, partition=""),
        card("x", fabric=FabricState.BROKEN),
        card("x", fabric=FabricState.NONE, partition=""),
        card("x", address=""),
    ],
    ids=["of another partition", "pending", "broken", "without fabric", "without address"],
)
def test_who_does_not_belong_does_not_join(stranger: NVLinkNode) -> None:
    assert plan(EMPTY, stranger)[0] == EMPTY


def test_a_card_without_its_node_does_not_join() -> None:
    assert plan(EMPTY, card("a"), nodes=set())[0] == EMPTY


@pytest.mark.parametrize(
    ("before", "says", "after"),
    [
        (MemberState.JOINING, card("a"), MemberState.JOINING),
        (MemberState.JOINING, card("a", slot=0, state=ImexState.READY), MemberState.READY),
        (MemberState.JOINING, card("a", slot=3, state=ImexState.READY), MemberState.JOINING),
        (MemberState.READY, card("a", slot=3, state=ImexState.READY), MemberState.NOT_READY),
        (MemberState.READY, card("a", slot=0, state=ImexState.WAITING_FOR_RECOVERY), MemberState.NOT_READY),
        (MemberState.NOT_READY, card("a", slot=0, state=ImexState.READY), MemberState.READY),
        (MemberState.READY, card("a", fabric=FabricState.PENDING, partition=""), MemberState.UNKNOWN),
        (MemberState.READY, card("a", fabric=FabricState.BROKEN), MemberState.NOT_READY),
        (
            MemberState.READY,
            card("a", fabric=FabricState.BROKEN, slot=0, state=ImexState.READY),
            MemberState.NOT_READY,
        ),
        (MemberState.READY, card("a", fabric=FabricState.NONE, partition=""), MemberState.UNKNOWN),
        (MemberState.UNKNOWN, card("a", slot=0, state=ImexState.READY), MemberState.READY),
        (MemberState.UNKNOWN, card("a"), MemberState.NOT_READY),
    ],
)
def test_a_members_state_follows_its_card_and_its_slot_stays(
    before: MemberState, says: NVLinkNode, after: MemberState
) -> None:
    planned, members = plan(Roster((member("a", 0, before),), 5), says)
    assert members["a"] == member("a", 0, after)
    assert planned.generation == 5


def test_silence_is_no_evidence() -> None:
    planned, members = plan(PAIR, ready("a", 0, 5), nodes={"a", "b"})
    assert members["b"] == member("b", 1, MemberState.UNKNOWN)
    assert planned.generation == 5


@pytest.mark.parametrize(
    ("cards", "nodes"),
    [([ready("a", 0, 5)], {"a"}), ([ready("a", 0, 5), card("b", partition=ELSEWHERE)], {"a", "b"})],
    ids=["its Node is deleted", "its card names another partition"],
)
def test_a_member_leaves_on_positive_evidence_with_a_new_generation(
    cards: list[NVLinkNode], nodes: set[str]
) -> None:
    planned, members = plan(PAIR, *cards, nodes=nodes)
    assert members["b"] == member("b", 1, LEFT, left=6)
    assert planned.generation == 6


def test_the_slot_of_one_who_leaves_stays_closed_until_every_daemon_runs_without_it() -> None:
    roster = Roster((member("a", 0), member("b", 1, LEFT, left=6), member("c", 2)), 6)
    planned, members = plan(roster, ready("a", 0, 6), ready("c", 2, 5), card("n"), nodes={"a", "c", "n"})
    assert members["b"].state is LEFT
    assert members["n"].slot == 3
    planned, members = plan(planned, ready("a", 0, 7), ready("c", 2, 6), ready("n", 3, 7), nodes={"a", "c", "n"})
    assert "b" not in members
    assert planned.generation == 7
    _, members = plan(planned, ready("a", 0, 7), ready("c", 2, 7), ready("n", 3, 7), card("m"))
    assert members["m"].slot == 1


@pytest.mark.parametrize("silent", [[], [card("c", fabric=FabricState.PENDING, partition="", applied=5)]])
def test_a_daemon_that_is_not_heard_of_may_still_run_with_the_old_list(silent: list[NVLinkNode]) -> None:
    roster = Roster((member("a", 0), member("b", 1, LEFT, left=6), member("c", 2)), 6)
    _, members = plan(roster, ready("a", 0, 6), *silent, nodes={"a", "c"})
    assert members["b"].state is LEFT


def test_the_last_one_closes_the_door() -> None:
    planned, members = plan(Roster((member("a", 0),), 5), nodes=set())
    assert members == {}
    assert planned.generation == 6


def test_a_node_that_comes_back_before_it_is_forgotten_has_its_slot_again() -> None:
    roster = Roster((member("a", 0), member("b", 1, LEFT, left=6)), 6)
    planned, members = plan(roster, ready("a", 0, 5), card("b"))
    assert members["b"] == member("b", 1, MemberState.JOINING)
    assert planned.generation == 7


def test_a_node_that_comes_back_without_a_card_is_on_its_way_out_until_it_has_one() -> None:
    leaving = member("b", 1, LEFT, left=6)
    planned, members = plan(Roster((member("a", 0), leaving), 6), ready("a", 0, 5), nodes={"a", "b"})
    assert (members["b"], planned.generation) == (leaving, 6)


def test_who_is_not_admitted_stays_outside_or_on_the_way_out() -> None:
    leaving = member("b", 1, LEFT, left=6)
    cards = {"a": ready("a", 0, 5), "b": card("b"), "c": card("c")}
    planned = plan_members(
        HERE,
        Roster((member("a", 0), leaving), 6),
        slots=4,
        cards=cards,
        nodes=cards.keys(),
        admitted=lambda card: False,
    )
    assert planned.members == (member("a", 0), leaving)


def test_a_new_address_is_a_new_generation() -> None:
    planned, members = plan(PAIR, ready("a", 0, 5), card("b", address="10.9.9.9", slot=1, state=ImexState.READY))
    assert members["b"].address == "10.9.9.9"
    assert planned.generation == 6


def test_without_a_free_slot_a_node_is_homeless_and_nobody_is_moved() -> None:
    planned, _ = plan(PAIR, ready("a", 0, 5), ready("b", 1, 5), card("c"), slots=2)
    assert planned == Roster(PAIR.members, 5, homeless=("c",))


def test_a_lost_record_is_carried_on_where_the_daemons_are() -> None:
    planned, members = plan(EMPTY, ready("a", 2, 7), ready("b", 0, 9), card("c"))
    assert {node: member.slot for node, member in members.items()} == {"a": 2, "b": 0, "c": 1}
    assert planned.generation == 10
    again, members = plan(planned, ready("a", 2, 10), ready("b", 0, 10), ready("c", 1, 10))
    assert {member.state for member in members.values()} == {MemberState.READY}
    assert again.generation == 10


def test_a_record_from_a_backup_goes_on_above_what_was_applied_since() -> None:
    old = Roster((member("a", 0), member("b", 1)), 3)
    planned, _ = plan(old, ready("a", 0, 7), ready("b", 1, 7))
    assert planned.generation == 7
    planned, members = plan(old, ready("a", 0, 7), nodes={"a"})
    assert (planned.generation, members["b"]) == (8, member("b", 1, LEFT, left=8))


def test_of_two_that_claim_to_run_in_one_slot_one_gets_it() -> None:
    _, members = plan(EMPTY, ready("a", 1, 7), ready("b", 1, 7), ready("c", 9, 7))
    assert {node: member.slot for node, member in members.items()} == {"a": 1, "b": 0, "c": 2}


def test_a_generation_of_another_partition_counts_for_nothing() -> None:
    planned, _ = plan(PAIR, ready("a", 0, 5), ready("b", 1, 5), card("x", partition=ELSEWHERE, applied=99))
    assert planned.generation == 5
