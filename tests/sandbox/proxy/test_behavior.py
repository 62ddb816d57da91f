"""The behavior of a node's proxy, and which request gets which error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_sandbox.proxy.behavior import Behavior, ErrorSchedule, InjectedError, Mode


@pytest.mark.parametrize(
    ("behavior", "mode"),
    [
        (Behavior(), Mode.FORWARD),
        (Behavior(stall=True), Mode.FORWARD),
        (Behavior(errors=(InjectedError(503, 0.5),)), Mode.INTERCEPT),
        (Behavior(watch_seconds=0.5), Mode.INTERCEPT),
        (Behavior(refuse=True), Mode.REFUSE),
        (Behavior(refuse=True, stall=True, errors=(InjectedError(503, 1.0),)), Mode.REFUSE),
    ],
)
def test_the_behavior_determines_the_mode(behavior: Behavior, mode: Mode) -> None:
    assert behavior.mode is mode


@given(st.floats(0.01, 1.0), st.integers(1, 200))
def test_the_share_of_errors_is_exact_for_any_number_of_requests(share: float, requests: int) -> None:
    schedule = ErrorSchedule([InjectedError(503, share)])
    errors = sum(schedule.next() is not None for _ in range(requests))
    assert errors == pytest.approx(share * requests, abs=1)
    assert errors <= share * requests + 1e-6


@given(st.floats(0.05, 0.5), st.floats(0.05, 0.5))
def test_two_kinds_of_errors_both_have_their_share(one: float, other: float) -> None:
    errors = [InjectedError(503, one), InjectedError(429, other, 1)]
    schedule = ErrorSchedule(errors)
    given_ = [schedule.next() for _ in range(400)]
    for error in errors:
        assert given_.count(error) == pytest.approx(error.share * 400, abs=2)


@pytest.mark.parametrize(("share", "expected"), [(1.0, "xxxx"), (0.5, ".x.x"), (0.25, "...x")])
def test_errors_are_evenly_spaced(share: float, expected: str) -> None:
    schedule = ErrorSchedule([InjectedError(503, share)])
    assert "".join("x" if schedule.next() else "." for _ in expected) == expected


def test_without_a_fault_no_request_gets_an_error() -> None:
    assert ErrorSchedule([]).next() is None
