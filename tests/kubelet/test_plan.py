"""Which containers start, and when: tables and properties over plain values, no clock and no process."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.sandbox.kubelet.plan import Plan, backoff, plan
from imex_dra.sandbox.kubelet.runs import End, Run, Runs
from imex_dra.sandbox.kubelet.views.container import Container
from imex_dra.sandbox.kubelet.views.pod import PodSpec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE, TWO = Container("one"), Container("two")


def running(attempt: int = 0) -> tuple[Run, ...]:
    return (Run("id", attempt, NOW),)


def ended(code: int, attempt: int = 0, *, ago: float = 0.0) -> tuple[Run, ...]:
    end = NOW - timedelta(seconds=ago)
    return (Run("id", attempt, end - timedelta(seconds=1), End(code, end)),)


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        ("Always", 0, Plan(start=("one",))),
        ("Always", 1, Plan(start=("one",))),
        ("OnFailure", 0, Plan(over=True)),
        ("OnFailure", 1, Plan(start=("one",))),
        ("Never", 0, Plan(over=True)),
        ("Never", 1, Plan(over=True)),
    ],
)
def test_what_an_end_means_is_the_policys_word(policy: str, code: int, expected: Plan) -> None:
    spec = PodSpec(restart_policy=policy, containers=(ONE,))
    assert plan(spec, {"one": ended(code)}, NOW) == expected


def test_all_containers_start_together() -> None:
    assert plan(PodSpec(containers=(ONE, TWO)), {}, NOW) == Plan(start=("one", "two"))


def test_a_pod_is_over_only_when_every_container_is() -> None:
    spec = PodSpec(restart_policy="Never", containers=(ONE, TWO))
    assert plan(spec, {"one": ended(0), "two": running()}, NOW) == Plan()
    assert plan(spec, {"one": ended(0), "two": ended(3)}, NOW) == Plan(over=True)


@pytest.mark.parametrize(("attempt", "seconds"), [(0, 0), (1, 10), (2, 20), (3, 40), (6, 300), (5000, 300)])
def test_restarts_come_ever_later(attempt: int, seconds: float) -> None:
    (run,) = ended(1, attempt)
    assert backoff(run) == seconds


def test_who_ran_long_enough_starts_with_a_clean_record() -> None:
    assert backoff(Run("id", 7, NOW - timedelta(seconds=601), End(1, NOW))) == 0


def test_a_container_that_must_wait_says_until_when() -> None:
    spec = PodSpec(containers=(ONE,))
    waits = Plan(held=("one",), wake=NOW + timedelta(seconds=6))
    assert plan(spec, {"one": ended(1, attempt=1, ago=4)}, NOW) == waits
    assert plan(spec, {"one": ended(1, attempt=1, ago=10)}, NOW) == Plan(start=("one",))


INITIAL = PodSpec(init_containers=(Container("a"), Container("b")), containers=(ONE,))


@pytest.mark.parametrize(
    ("runs", "start"),
    [
        ({}, ("a",)),
        ({"a": running()}, ()),
        ({"a": ended(0)}, ("b",)),
        ({"a": ended(1)}, ("a",)),
        ({"a": ended(0), "b": running()}, ()),
        ({"a": ended(0), "b": ended(0)}, ("one",)),
        ({"a": ended(0), "b": ended(0), "one": running()}, ()),
    ],
)
def test_init_containers_go_one_by_one(runs: Runs, start: tuple[str, ...]) -> None:
    assert plan(INITIAL, runs, NOW).start == start


def test_a_sidecar_stays_beside_those_after_it() -> None:
    side = Container("side", restart_policy="Always")
    spec = PodSpec(restart_policy="Never", init_containers=(side, Container("a")), containers=(ONE,))
    assert plan(spec, {}, NOW).start == ("side",)
    assert plan(spec, {"side": running()}, NOW).start == ("a",)
    assert plan(spec, {"side": ended(1), "a": running()}, NOW).start == ("side",)
    assert plan(spec, {"side": running(), "a": ended(0)}, NOW).start == ("one",)
    assert plan(spec, {"side": running(), "a": ended(0), "one": ended(0)}, NOW) == Plan(over=True)


RUNS = st.one_of(
    st.just(()),
    st.builds(running, st.integers(0, 5)),
    st.builds(ended, st.integers(0, 2), st.integers(0, 5), ago=st.floats(0, 1000)),
)


@given(
    policy=st.sampled_from(["Always", "OnFailure", "Never"]),
    runs=st.fixed_dictionaries(dict.fromkeys(("a", "b", "one", "two"), RUNS)),
)
def test_nothing_that_runs_is_started_and_no_pod_stands_still(policy: str, runs: Runs) -> None:
    spec = PodSpec(restart_policy=policy, init_containers=(Container("a"), Container("b")), containers=(ONE, TWO))
    chosen = plan(spec, runs, NOW)
    alive = {name for name, found in runs.items() if found and found[-1].end is None}
    assert not alive & set(chosen.start)
    assert not (chosen.over and chosen.start)
    assert chosen.over or chosen.start or chosen.wake or alive


def test_what_comes_after_a_sidecar_waits_until_it_has_started() -> None:
    sidecar = Container("beside", restart_policy="Always")
    spec = PodSpec(init_containers=(sidecar,), containers=(ONE,))
    runs = {"beside": (Run("id", 0, NOW),)}
    assert plan(spec, runs, NOW, unstarted={"beside"}) == Plan()
    assert plan(spec, runs, NOW) == Plan(start=("one",))
