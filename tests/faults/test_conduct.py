"""What several faults on one line mean together, and who gets which answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.sandbox.faults.conduct import Answer, Conduct, Manner, Turns, conduct
from imex_dra.sandbox.faults.kinds import BreakFabric, CutApi, ExpireWatches, FailApi, Fault, ThrottleApi

SILENCE = CutApi(nodes=("a",))
REFUSAL = CutApi(nodes=("a",), refuse=True)


@pytest.mark.parametrize(
    ("faults", "expected", "manner"),
    [
        ([], Conduct(), Manner.SPLICE),
        ([BreakFabric(nodes=("a",))], Conduct(), Manner.SPLICE),
        ([SILENCE], Conduct(silent=True), Manner.SPLICE),
        ([REFUSAL], Conduct(refused=True), Manner.REFUSE),
        ([SILENCE, REFUSAL], Conduct(refused=True, silent=True), Manner.REFUSE),
        ([FailApi(share=0.3, code=500)], Conduct(answers=(Answer(500, 0.3),)), Manner.INTERCEPT),
        ([ThrottleApi(share=0.3)], Conduct(answers=(Answer(429, 0.3, retry_after=1),)), Manner.INTERCEPT),
        ([ExpireWatches(every="3s"), ExpireWatches(every="500ms")], Conduct(watch_seconds=0.5), Manner.INTERCEPT),
        (
            [REFUSAL, FailApi(share=1.0)],
            Conduct(refused=True, answers=(Answer(503, 1.0),)),
            Manner.REFUSE,
        ),
    ],
)
def test_faults_on_one_line_add_up(faults: list[Fault], expected: Conduct, manner: Manner) -> None:
    assert conduct(faults) == expected
    assert expected.manner is manner


@given(st.floats(0.01, 1.0), st.integers(1, 200))
def test_a_share_is_exact_over_any_number_of_requests(share: float, requests: int) -> None:
    turns = Turns([Answer(503, share)])
    given_ = sum(turns.next() is not None for _ in range(requests))
    assert given_ == pytest.approx(share * requests, abs=1)
    assert given_ <= share * requests + 1e-6


@given(st.floats(0.05, 0.5), st.floats(0.05, 0.5))
def test_two_shares_are_both_kept(one: float, other: float) -> None:
    answers = [Answer(503, one), Answer(429, other, 1)]
    turns = Turns(answers)
    got = [turns.next() for _ in range(400)]
    for answer in answers:
        assert got.count(answer) == pytest.approx(answer.share * 400, abs=2)


@pytest.mark.parametrize(("share", "expected"), [(1.0, "xxxx"), (0.5, ".x.x"), (0.25, "...x")])
def test_requests_take_turns(share: float, expected: str) -> None:
    turns = Turns([Answer(503, share)])
    assert "".join("x" if turns.next() else "." for _ in expected) == expected


def test_no_answer_of_ours_without_a_fault() -> None:
    assert Turns([]).next() is None
