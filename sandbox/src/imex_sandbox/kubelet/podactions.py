"""What to do with the containers of a pod: which ones to start now, which ones to hold back, and when to stop.

Init containers run in order, restarts follow the restart policy, and crashing containers are restarted with an
exponential back-off.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

from msgspec import Struct

from imex_dra.api.meta import is_deleting
from imex_sandbox.kubelet.podstate import ContainerRun, ContainerRuns, Termination, latest_run
from imex_sandbox.kubelet.views.pod import Container, Pod, PodSpec

INITIAL_BACKOFF = 10.0
MAX_BACKOFF = 300.0
BACKOFF_RESET = 2 * MAX_BACKOFF
"""A container that ran this long restarts without back-off."""

MIN_GRACE_PERIOD = 2.0


class PodActions(Struct, frozen=True):
    start: tuple[str, ...] = ()
    backing_off: tuple[str, ...] = ()
    """Containers that will be restarted, but not yet."""
    next_start: datetime | None = None
    """When the back-off of the first of them ends."""
    done: bool = False
    """No container runs, and none will be started."""


def compute_pod_actions(
    spec: PodSpec, runs: ContainerRuns, now: datetime, unstarted: Collection[str] = ()
) -> PodActions:
    """`unstarted` are the containers whose startup probe has not succeeded yet."""
    # Once a main container has run, the pod stays initialized: finished init containers are never restarted.
    if not any(latest_run(runs, container.name) for container in spec.containers):
        initialization = _initialize(spec, runs, now, unstarted)
        if initialization is not None:
            return initialization
    done = all(_is_done(spec, container, runs) for container in spec.containers)
    if done:
        return PodActions(done=True)
    return _merge([_container_actions(spec, container, runs, now) for container in _long_running(spec)])


def should_restart(spec: PodSpec, container: Container, termination: Termination) -> bool:
    policy = container.restart_policy or spec.restart_policy
    return policy == "Always" or (policy == "OnFailure" and termination.exit_code != 0)


def backoff(run: ContainerRun) -> float:
    """Seconds between the end of this run and the next start; the first restart is immediate."""
    assert run.termination is not None
    duration = run.termination.finished_at - run.started_at
    if run.attempt == 0 or duration.total_seconds() >= BACKOFF_RESET:
        return 0.0
    return float(min(MAX_BACKOFF, INITIAL_BACKOFF * 2.0 ** min(run.attempt - 1, 10)))


def restart_time(run: ContainerRun) -> datetime:
    assert run.termination is not None
    return run.termination.finished_at + timedelta(seconds=backoff(run))


def grace_period(pod: Pod, override: int | None = None) -> float:
    """Seconds; the grace period of a deletion wins over `override` (a probe's), which wins over the pod's."""
    if is_deleting(pod) and pod.metadata.deletion_grace_period_seconds is not None:
        override = pod.metadata.deletion_grace_period_seconds
    return max(MIN_GRACE_PERIOD, pod.spec.termination_grace_period_seconds if override is None else override)


def _initialize(
    spec: PodSpec, runs: ContainerRuns, now: datetime, unstarted: Collection[str]
) -> PodActions | None:
    """None when the pod is initialized."""
    sidecars: list[PodActions] = []
    for container in spec.init_containers:
        run = latest_run(runs, container.name)
        if container.is_sidecar:
            sidecars.append(_container_actions(spec, container, runs, now))
            if run is None or container.name in unstarted:
                return _merge(sidecars)
        elif run is None or run.termination is None:
            return _merge([*sidecars, _container_actions(spec, container, runs, now)])
        elif run.termination.exit_code != 0:
            if not should_restart(spec, container, run.termination):
                return PodActions(done=True)
            return _merge([*sidecars, _container_actions(spec, container, runs, now)])
    return None


def _container_actions(spec: PodSpec, container: Container, runs: ContainerRuns, now: datetime) -> PodActions:
    run = latest_run(runs, container.name)
    if run is None:
        return PodActions(start=(container.name,))
    if run.termination is None or not should_restart(spec, container, run.termination):
        return PodActions()
    if restart_time(run) <= now:
        return PodActions(start=(container.name,))
    return PodActions(backing_off=(container.name,), next_start=restart_time(run))


def _is_done(spec: PodSpec, container: Container, runs: ContainerRuns) -> bool:
    run = latest_run(runs, container.name)
    return run is not None and run.termination is not None and not should_restart(spec, container, run.termination)


def _long_running(spec: PodSpec) -> list[Container]:
    return [*(container for container in spec.init_containers if container.is_sidecar), *spec.containers]


def _merge(actions: list[PodActions]) -> PodActions:
    times = [each.next_start for each in actions if each.next_start is not None]
    return PodActions(
        start=tuple(name for each in actions for name in each.start),
        backing_off=tuple(name for each in actions for name in each.backing_off),
        next_start=min(times, default=None),
    )
