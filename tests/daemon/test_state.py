"""What is believed about nvidia-imex: how long to wait for recovery, when to poll next, which answers count."""

from datetime import UTC, datetime, timedelta

import pytest

from imex_dra.api.nvlinknode import ImexState
from imex_dra.daemon.state import (
    Boots,
    Connections,
    PollIntervals,
    Readiness,
    Recovery,
    RecoveryTimeouts,
    is_same_version,
)
from imex_dra.imex.memberlist import Leave, MemberList

LIST = MemberList("7b.1", 5, 24, "imex-0a1b2c3d-%03d", {0: "10.0.0.1", 1: "10.0.0.2"}, 0, "10.0.0.1")
WAITING, READY, UNAVAILABLE = ImexState.WAITING_FOR_RECOVERY, ImexState.READY, ImexState.UNAVAILABLE


LIMITS = RecoveryTimeouts(without_importers=60, longest=900)


@pytest.mark.parametrize(
    ("observed", "quorum"),
    [
        ([(0, WAITING), (59, WAITING)], "RECOVERY"),
        ([(0, WAITING), (60, WAITING)], "NONE"),
        ([(0, WAITING), (30, UNAVAILABLE), (60, WAITING)], "NONE"),
        ([(0, ImexState.INITIALIZING), (90, ImexState.INITIALIZING)], "RECOVERY"),
        ([(0, WAITING), (60, WAITING), (61, UNAVAILABLE), (62, ImexState.INIT_GPU)], "NONE"),
        ([(0, WAITING), (60, WAITING), (62, READY)], "RECOVERY"),
        ([(0, WAITING), (30, READY), (70, WAITING)], "RECOVERY"),
    ],
)
def test_without_a_missing_importer_the_wait_is_short(
    observed: list[tuple[float, ImexState]], quorum: str
) -> None:
    recovery = Recovery()
    for now, state in observed:
        recovery = recovery.observe(state, now, LIMITS, complete=True)
    assert recovery.quorum == quorum


@pytest.mark.parametrize(
    ("complete", "quorum"),
    [
        ([(0, False), (899, False)], "RECOVERY"),
        ([(0, False), (900, False)], "NONE"),
        ([(0, False), (500, True), (559, True)], "RECOVERY"),
        ([(0, False), (500, True), (560, True)], "NONE"),
        ([(0, True), (50, False), (60, True), (119, True)], "RECOVERY"),
        ([(0, True), (50, False), (60, True), (120, True)], "NONE"),
    ],
    ids=[
        "one is missing",
        "one is missing for very long",
        "it has left or was suspended",
        "and a minute later",
        "one was missing in between",
        "and a minute later again",
    ],
)
def test_a_member_that_may_be_alive_is_waited_for_much_longer(
    complete: list[tuple[float, bool]], quorum: str
) -> None:
    recovery = Recovery()
    for now, is_complete in complete:
        recovery = recovery.observe(WAITING, now, LIMITS, complete=is_complete)
    assert recovery.quorum == quorum


@pytest.mark.parametrize(
    ("desired", "state", "connected", "interval"),
    [
        (LIST, UNAVAILABLE, None, 0.2),
        (LIST, WAITING, None, 0.2),
        (LIST, READY, None, 1.0),
        (LIST, READY, (), 1.0),
        (LIST, READY, (1,), 5.0),
        (None, READY, None, 1.0),
        (None, READY, (), 5.0),
        (Leave("7b.1"), READY, (), 5.0),
    ],
    ids=[
        "starting",
        "in recovery",
        "not known yet",
        "a member is missing",
        "all are connected",
        "adopted, and not known yet",
        "adopted",
        "not a member",
    ],
)
def test_the_state_is_polled_more_often_while_a_change_is_expected(
    desired: MemberList | Leave | None, state: ImexState, connected: tuple[int, ...] | None, interval: float
) -> None:
    intervals = PollIntervals(starting=0.2, connecting=1.0, steady=5.0)
    assert intervals.interval(desired, Readiness(state), connected, age=1) == interval


def test_after_a_query_without_an_answer_the_next_one_comes_soon() -> None:
    intervals = PollIntervals(starting=0.2, connecting=1.0, steady=5.0)
    assert intervals.interval(LIST, Readiness(READY, missed=True), (1,), age=1) == 1.0


def test_a_process_that_is_not_ready_for_long_is_queried_less_often() -> None:
    state = Readiness(ImexState.WAITING_FOR_RECOVERY)
    assert PollIntervals().interval(LIST, state, None, age=9) == 0.2
    assert PollIntervals().interval(LIST, state, None, age=11) == 2.0
    assert PollIntervals(starting=3.0).interval(LIST, state, None, age=11) == 3.0


@pytest.mark.parametrize(
    ("answers", "states"),
    [
        ([UNAVAILABLE, READY], [UNAVAILABLE, READY]),
        ([READY, UNAVAILABLE, READY, UNAVAILABLE], [READY, READY, READY, READY]),
        ([READY, UNAVAILABLE, UNAVAILABLE, UNAVAILABLE], [READY, READY, UNAVAILABLE, UNAVAILABLE]),
        ([READY, ImexState.SHUTTING_DOWN], [READY, ImexState.SHUTTING_DOWN]),
        ([WAITING, UNAVAILABLE], [WAITING, UNAVAILABLE]),
    ],
    ids=["starting", "single misses", "two misses", "an answer counts at once", "not READY before"],
)
def test_a_ready_daemon_is_unavailable_after_two_queries_without_an_answer(
    answers: list[ImexState], states: list[ImexState]
) -> None:
    readiness, believed = Readiness(), []
    for answer in answers:
        readiness = readiness.observe(answer)
        believed.append(readiness.state)
    assert believed == states


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_connections_that_are_not_reported_stay_and_are_outdated_after_a_while() -> None:
    connections = Connections(reported_at=NOON)
    assert connections.indexes is None
    assert connections.unreported_since(after(29.9)) == ""
    assert connections.unreported_since(after(30)) == "2026-01-01T12:00:00Z"
    connections = connections.observe((1, 2), after(40)).observe(None, after(60))
    assert (connections.indexes, connections.unreported_since(after(69.9))) == ((1, 2), "")
    assert connections.unreported_since(after(100)) == "2026-01-01T12:00:40Z"
    assert connections.observe((), after(100)) == Connections(after(100), ())


@pytest.mark.parametrize(
    ("imex", "driver", "same"),
    [
        ("580.95.05", "580.95.05", True),
        ("580.95", "580.95.05", True),
        ("580.9", "580.95.05", False),
        ("570.172", "580.95.05", False),
        ("", "580.95.05", True),
        ("580.95", "", True),
        ("NO_GPU", "580.95.05", True),
    ],
)
def test_nvidia_imex_belongs_to_the_driver_of_the_same_version(imex: str, driver: str, same: bool) -> None:
    assert is_same_version(imex, driver) is same


def test_a_member_with_another_boot_id_than_while_the_process_before_was_ready_has_rebooted() -> None:
    boots = Boots().observe(ImexState.READY, {0: "a", 1: "b"})
    assert boots.rebooted({0: "a", 1: "b", 2: "c"}) == frozenset()
    # The process has ended; between the two, a reboot counts, and what is new is remembered.
    boots = boots.observe(ImexState.UNAVAILABLE, {0: "a", 1: "x", 2: "c"}).observe(
        WAITING, {0: "a", 1: "x", 2: "z"}
    )
    assert boots.rebooted({0: "a", 1: "x", 2: "z"}) == {1, 2}
    assert boots.observe(ImexState.READY, {1: "x"}).rebooted({1: "x"}) == frozenset()


def test_without_what_was_before_no_member_has_rebooted() -> None:
    assert Boots().observe(WAITING, {1: "x"}).rebooted({1: "x"}) == frozenset()
    assert Boots({1: "x"}).rebooted({}) == frozenset()
