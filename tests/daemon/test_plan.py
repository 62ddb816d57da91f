"""The agent's decisions: restart or not, how long to wait for recovery, when to poll next."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.nvlinknode import ImexState
from imex_dra.daemon.plan import (
    Connections,
    PollIntervals,
    Readiness,
    Recovery,
    Step,
    next_step,
    recovery_problem,
    supersedes,
)
from imex_dra.imex.link import DaemonState
from imex_dra.imex.memberlist import MemberList

LIST = MemberList("7b.1", 5, 24, "imex-0a1b2c3d-%03d", {"0": "10.0.0.1", "1": "10.0.0.2"}, 0, "10.0.0.1")
WAITING, READY, UNAVAILABLE = ImexState.WAITING_FOR_RECOVERY, ImexState.READY, ImexState.UNAVAILABLE


def changed(**facts: Any) -> MemberList:
    return structs.replace(LIST, **facts)


def test_the_first_member_list_starts_the_daemon() -> None:
    assert next_step(None, LIST) is Step.START


@pytest.mark.parametrize(
    ("desired", "step"),
    [
        (LIST, Step.NOTHING),
        (changed(generation=6), Step.NOTHING),
        (changed(addresses={**LIST.addresses, "1": "10.0.0.22"}), Step.UPDATE_HOSTS),
        (changed(addresses={**LIST.addresses, "2": "10.0.0.3"}), Step.UPDATE_HOSTS),
        (changed(addresses={"0": "10.0.0.1"}), Step.UPDATE_HOSTS),
        (changed(own_index=3, addresses={"3": "10.0.0.1"}), Step.RESTART),
        (changed(own_address="10.0.0.9", addresses={"0": "10.0.0.9"}), Step.RESTART),
        (changed(partition="7b.2"), Step.RESTART),
        (changed(max_nodes=16), Step.RESTART),
        (changed(name_format="imex-ffffffff-%03d"), Step.RESTART),
    ],
)
def test_only_what_nvidia_imex_reads_at_start_requires_a_restart(desired: MemberList, step: Step) -> None:
    assert next_step(LIST, desired) is step


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
def test_an_older_list_of_the_same_partition_does_not_win(
    new: MemberList, old: MemberList | None, wins: bool
) -> None:
    assert supersedes(new, old) is wins


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
def test_importers_are_waited_for_until_the_timeout(observed: list[tuple[float, ImexState]], quorum: str) -> None:
    recovery = Recovery()
    for now, state in observed:
        recovery = recovery.observe(state, now, timeout=60)
    assert recovery.quorum == quorum


@pytest.mark.parametrize(
    ("state", "without_quorum", "expected"),
    [
        (WAITING, False, "nvidia-imex did not exit cleanly and waits up to 60 s"),
        (WAITING, True, "nvidia-imex did not exit cleanly and waits up to 60 s"),
        (READY, True, "nvidia-imex was restarted without recovery"),
        (READY, False, ""),
        (ImexState.INITIALIZING, False, ""),
    ],
)
def test_a_recovery_is_reported_as_a_problem(state: ImexState, without_quorum: bool, expected: str) -> None:
    problem = recovery_problem(state, 60.0, without_quorum=without_quorum)
    assert problem.startswith(expected)
    assert bool(problem) is bool(expected)


@pytest.mark.parametrize(
    ("applied", "state", "connected", "interval"),
    [
        (None, UNAVAILABLE, (), 5.0),
        (LIST, UNAVAILABLE, (), 0.2),
        (LIST, WAITING, (1,), 0.2),
        (LIST, READY, None, 1.0),
        (LIST, READY, (), 1.0),
        (LIST, READY, (1,), 5.0),
    ],
    ids=["not running", "starting", "in recovery", "not known yet", "a member is missing", "all are connected"],
)
def test_the_state_is_polled_more_often_while_a_change_is_expected(
    applied: MemberList | None, state: ImexState, connected: tuple[int, ...] | None, interval: float
) -> None:
    intervals = PollIntervals(starting=0.2, connecting=1.0, steady=5.0)
    assert intervals.interval(applied, DaemonState(state, connected=connected)) == interval


def test_after_a_query_without_an_answer_the_next_one_comes_soon() -> None:
    intervals = PollIntervals(starting=0.2, connecting=1.0, steady=5.0)
    assert intervals.interval(LIST, DaemonState(READY, connected=(1,)), missed=True) == 1.0


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
