"""Which containers start and when: tables and properties over plain values, without a clock or a process."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_sandbox.kubelet.podactions import (
    MIN_GRACE_PERIOD,
    PodActions,
    backoff,
    compute_pod_actions,
    grace_period,
)
from imex_sandbox.kubelet.podstate import ContainerRun, ContainerRuns, Termination
from imex_sandbox.kubelet.views.pod import Container, Pod, PodMeta, PodSpec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE, TWO = Container("one"), Container("two")


def running(attempt: int = 0) -> tuple[ContainerRun, ...]:
    return (ContainerRun("id", attempt, NOW),)


def terminated(code: int, attempt: int = 0, *, ago: float = 0.0) -> tuple[ContainerRun, ...]:
    end = NOW - timedelta(seconds=ago)
    return (ContainerRun("id", attempt, end - timedelta(seconds=1), Termination(code, end)),)


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        ("Always", 0, PodActions(start=("one",))),
        ("Always", 1, PodActions(start=("one",))),
        ("OnFailure", 0, PodActions(done=True)),
        ("OnFailure", 1, PodActions(start=("one",))),
        ("Never", 0, PodActions(done=True)),
        ("Never", 1, PodActions(done=True)),
    ],
)
def test_the_restart_policy_decides_about_a_terminated_container(
    policy: str, code: int, expected: PodActions
) -> None:
    spec = PodSpec(restart_policy=policy, containers=(ONE,))
    assert compute_pod_actions(spec, {"one": terminated(code)}, NOW) == expected


def test_all_containers_start_together() -> None:
    assert compute_pod_actions(PodSpec(containers=(ONE, TWO)), {}, NOW) == PodActions(start=("one", "two"))


def test_a_pod_is_done_when_every_container_is() -> None:
    spec = PodSpec(restart_policy="Never", containers=(ONE, TWO))
    assert compute_pod_actions(spec, {"one": terminated(0), "two": running()}, NOW) == PodActions()
    assert compute_pod_actions(spec, {"one": terminated(0), "two": terminated(3)}, NOW) == PodActions(done=True)


@pytest.mark.parametrize(("attempt", "seconds"), [(0, 0), (1, 10), (2, 20), (3, 40), (6, 300), (5000, 300)])
def test_the_backoff_doubles_up_to_its_maximum(attempt: int, seconds: float) -> None:
    (run,) = terminated(1, attempt)
    assert backoff(run) == seconds


def test_a_long_run_resets_the_backoff() -> None:
    assert backoff(ContainerRun("id", 7, NOW - timedelta(seconds=601), Termination(1, NOW))) == 0


def test_a_container_in_backoff_starts_when_the_backoff_ends() -> None:
    spec = PodSpec(containers=(ONE,))
    waiting = PodActions(backing_off=("one",), next_start=NOW + timedelta(seconds=6))
    assert compute_pod_actions(spec, {"one": terminated(1, attempt=1, ago=4)}, NOW) == waiting
    assert compute_pod_actions(spec, {"one": terminated(1, attempt=1, ago=10)}, NOW) == PodActions(start=("one",))


@pytest.mark.parametrize(
    ("runs", "start"),
    [
        ({}, ("a",)),
        ({"a": running()}, ()),
        ({"a": terminated(0)}, ("b",)),
        ({"a": terminated(1)}, ("a",)),
        ({"a": terminated(0), "b": running()}, ()),
        ({"a": terminated(0), "b": terminated(0)}, ("one",)),
        ({"a": terminated(0), "b": terminated(0), "one": running()}, ()),
    ],
)
def test_init_containers_run_one_after_the_other(runs: ContainerRuns, start: tuple[str, ...]) -> None:
    spec = PodSpec(init_containers=(Container("a"), Container("b")), containers=(ONE,))
    assert compute_pod_actions(spec, runs, NOW).start == start


def test_a_sidecar_keeps_running_beside_the_containers_after_it() -> None:
    sidecar = Container("side", restart_policy="Always")
    spec = PodSpec(restart_policy="Never", init_containers=(sidecar, Container("a")), containers=(ONE,))
    assert compute_pod_actions(spec, {}, NOW).start == ("side",)
    assert compute_pod_actions(spec, {"side": running()}, NOW).start == ("a",)
    assert compute_pod_actions(spec, {"side": terminated(1), "a": running()}, NOW).start == ("side",)
    initialized = {"side": running(), "a": terminated(0)}
    assert compute_pod_actions(spec, initialized, NOW).start == ("one",)
    assert compute_pod_actions(spec, {**initialized, "one": terminated(0)}, NOW) == PodActions(done=True)


def test_containers_after_a_sidecar_wait_for_its_startup_probe() -> None:
    sidecar = Container("side", restart_policy="Always")
    spec = PodSpec(init_containers=(sidecar,), containers=(ONE,))
    assert compute_pod_actions(spec, {"side": running()}, NOW, unstarted={"side"}) == PodActions()
    assert compute_pod_actions(spec, {"side": running()}, NOW) == PodActions(start=("one",))


RUNS = st.one_of(
    st.just(()),
    st.builds(running, st.integers(0, 5)),
    st.builds(terminated, st.integers(0, 2), st.integers(0, 5), ago=st.floats(0, 1000)),
)


@given(
    policy=st.sampled_from(["Always", "OnFailure", "Never"]),
    runs=st.fixed_dictionaries(dict.fromkeys(("a", "b", "one", "two"), RUNS)),
)
def test_running_containers_are_not_started_and_every_pod_makes_progress(policy: str, runs: ContainerRuns) -> None:
    spec = PodSpec(restart_policy=policy, init_containers=(Container("a"), Container("b")), containers=(ONE, TWO))
    actions = compute_pod_actions(spec, runs, NOW)
    alive = {name for name, found in runs.items() if found and found[-1].termination is None}
    assert not alive & set(actions.start)
    assert not (actions.done and actions.start)
    assert actions.done or actions.start or actions.next_start or alive


@pytest.mark.parametrize(
    ("deletion", "probe", "seconds"),
    [
        (None, None, 30),
        (None, 5, 5),
        (None, 0, MIN_GRACE_PERIOD),
        (7, None, 7),
        (7, 5, 7),
        (0, None, MIN_GRACE_PERIOD),
    ],
)
def test_the_grace_period_of_a_deletion_wins_over_the_probes_and_the_pods(
    deletion: int | None, probe: int | None, seconds: float
) -> None:
    timestamp = "" if deletion is None else "2026-01-01T12:00:00Z"
    meta = PodMeta(name="p", deletion_timestamp=timestamp, deletion_grace_period_seconds=deletion)
    assert grace_period(Pod(meta, PodSpec(termination_grace_period_seconds=30)), probe) == seconds
