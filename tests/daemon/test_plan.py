"""What a new member list means for a daemon that runs."""

from typing import Any

import pytest
from msgspec import structs

from imex_dra.daemon.plan import Step, next_step, supersedes
from imex_dra.imex.membership import Membership

LIST = Membership("7b.1", 5, 24, "imex-0a1b2c3d-%03d", {"0": "10.0.0.1", "1": "10.0.0.2"}, 0, "10.0.0.1")


def changed(**facts: Any) -> Membership:
    return structs.replace(LIST, **facts)


def test_nothing_runs_yet() -> None:
    assert next_step(None, LIST) is Step.START


@pytest.mark.parametrize(
    ("wanted", "step"),
    [
        (LIST, Step.NOTHING),
        (changed(generation=6), Step.NOTHING),
        (changed(addresses={**LIST.addresses, "1": "10.0.0.22"}), Step.REMAP),
        (changed(addresses={**LIST.addresses, "2": "10.0.0.3"}), Step.REMAP),
        (changed(addresses={"0": "10.0.0.1"}), Step.REMAP),
        (changed(own_slot=3, addresses={"3": "10.0.0.1"}), Step.RESTART),
        (changed(own_address="10.0.0.9", addresses={"0": "10.0.0.9"}), Step.RESTART),
        (changed(partition="7b.2"), Step.RESTART),
        (changed(slots=16), Step.RESTART),
        (changed(name_format="imex-ffffffff-%03d"), Step.RESTART),
    ],
)
def test_only_what_imex_reads_at_start_alone_is_worth_a_restart(wanted: Membership, step: Step) -> None:
    assert next_step(LIST, wanted) is step


@pytest.mark.parametrize(
    ("new", "old", "wins"),
    [
        (LIST, None, True),
        (LIST, LIST, True),
        (changed(generation=6), LIST, True),
        (changed(generation=4), LIST, False),
        (changed(generation=4, partition="7b.2"), LIST, True),
    ],
)
def test_of_two_node_programs_the_one_with_the_older_list_does_not_win(
    new: Membership, old: Membership | None, wins: bool
) -> None:
    assert supersedes(new, old) is wins
