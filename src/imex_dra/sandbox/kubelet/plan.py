"""Which containers of a pod to start now: init containers in order, restarts by policy and ever later."""

from collections.abc import Collection
from datetime import datetime, timedelta

from msgspec import Struct

from imex_dra.sandbox.kubelet.runs import End, Run, Runs, is_running, latest
from imex_dra.sandbox.kubelet.views.container import Container
from imex_dra.sandbox.kubelet.views.pod import PodSpec

FIRST_BACKOFF = 10.0
LONGEST_BACKOFF = 300.0
FORGIVEN_AFTER = 2 * LONGEST_BACKOFF
"""A container that ran this long starts with a clean record."""


class Plan(Struct, frozen=True):
    start: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    """Containers that may start again, but not yet."""
    wake: datetime | None = None
    """When the first of them may."""
    over: bool = False
    """Nothing runs and nothing will."""


def plan(spec: PodSpec, runs: Runs, now: datetime, unstarted: Collection[str] = ()) -> Plan:
    """`unstarted` are containers whose startup probe has not succeeded yet."""
    if not any(latest(runs, container.name) for container in spec.containers):
        initialisation = _initialise(spec, runs, now, unstarted)
        if initialisation is not None:
            return initialisation
    wanted = [*_sidecars(spec), *spec.containers]
    steps = [_step(spec, container, runs, now) for container in wanted]
    over = all(_is_over(spec, container, runs) for container in spec.containers)
    return _merged([] if over else steps, over=over)


def restarts(spec: PodSpec, container: Container, end: End) -> bool:
    policy = container.restart_policy or spec.restart_policy
    return policy == "Always" or (policy == "OnFailure" and end.code != 0)


def backoff(run: Run) -> float:
    """Seconds from the end of this run to the next: the first restart is free."""
    assert run.end is not None
    if run.attempt == 0 or (run.end.at - run.started).total_seconds() >= FORGIVEN_AFTER:
        return 0.0
    return float(min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(run.attempt - 1, 10)))


def due(run: Run) -> datetime:
    assert run.end is not None
    return run.end.at + timedelta(seconds=backoff(run))


def _initialise(spec: PodSpec, runs: Runs, now: datetime, unstarted: Collection[str]) -> Plan | None:
    """None when all init containers are through."""
    beside: list[Plan] = []
    for container in spec.init_containers:
        run = latest(runs, container.name)
        if container.is_sidecar:
            beside.append(_step(spec, container, runs, now))
            if run is None or container.name in unstarted:
                return _merged(beside)
        elif run is None or run.end is None:
            return _merged([*beside, _step(spec, container, runs, now)])
        elif run.end.code != 0:
            over = not restarts(spec, container, run.end)
            return Plan(over=True) if over else _merged([*beside, _step(spec, container, runs, now)])
    return None


def _step(spec: PodSpec, container: Container, runs: Runs, now: datetime) -> Plan:
    run = latest(runs, container.name)
    if run is None:
        return Plan(start=(container.name,))
    if run.end is None or not restarts(spec, container, run.end):
        return Plan()
    return Plan(start=(container.name,)) if due(run) <= now else Plan(held=(container.name,), wake=due(run))


def _is_over(spec: PodSpec, container: Container, runs: Runs) -> bool:
    run = latest(runs, container.name)
    return run is not None and run.end is not None and not restarts(spec, container, run.end)


def _sidecars(spec: PodSpec) -> list[Container]:
    return [container for container in spec.init_containers if container.is_sidecar]


def _merged(plans: list[Plan], *, over: bool = False) -> Plan:
    wakes = [plan.wake for plan in plans if plan.wake is not None]
    return Plan(
        start=tuple(name for plan in plans for name in plan.start),
        held=tuple(name for plan in plans for name in plan.held),
        wake=min(wakes, default=None),
        over=over,
    )


def running(spec: PodSpec, runs: Runs) -> list[str]:
    return [container.name for container in spec.every_container if is_running(runs, container.name)]
