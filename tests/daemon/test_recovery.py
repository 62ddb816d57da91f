"""How long importers are waited for after an unclean exit, and what is said about it."""

import pytest

from imex_dra.api.nvlinknode import ImexState
from imex_dra.daemon.recovery import Recovery, problem

WAITING, READY, AWAY = ImexState.WAITING_FOR_RECOVERY, ImexState.READY, ImexState.UNAVAILABLE


@pytest.mark.parametrize(
    ("seen", "quorum"),
    [
        ([(0, WAITING), (59, WAITING)], "RECOVERY"),
        ([(0, WAITING), (60, WAITING)], "NONE"),
        ([(0, WAITING), (30, AWAY), (60, WAITING)], "NONE"),
        ([(0, ImexState.INITIALIZING), (90, ImexState.INITIALIZING)], "RECOVERY"),
        ([(0, WAITING), (60, WAITING), (61, AWAY), (62, ImexState.INIT_GPU)], "NONE"),
        ([(0, WAITING), (60, WAITING), (62, READY)], "RECOVERY"),
        ([(0, WAITING), (30, READY), (70, WAITING)], "RECOVERY"),
    ],
)
def test_importers_are_waited_for_until_the_patience_ends(
    seen: list[tuple[float, ImexState]], quorum: str
) -> None:
    recovery = Recovery()
    for now, state in seen:
        recovery = recovery.seen(state, now, patience=60)
    assert recovery.quorum == quorum


@pytest.mark.parametrize(
    ("state", "alone", "words"),
    [
        (WAITING, False, "it ended uncleanly and waits, 60 s at most"),
        (WAITING, True, "it ended uncleanly and waits, 60 s at most"),
        (READY, True, "it was restarted without waiting"),
        (READY, False, ""),
        (ImexState.INITIALIZING, False, ""),
    ],
)
def test_what_there_is_to_say_of_a_daemon_that_answers(state: ImexState, alone: bool, words: str) -> None:
    said = problem(state, 60.0, alone=alone)
    assert said.startswith(words)
    assert bool(said) is bool(words)
