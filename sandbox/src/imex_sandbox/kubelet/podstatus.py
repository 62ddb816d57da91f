"""The API status of a pod: a pure function of its spec and its observed state, and the writer that sends it.

Phases, reasons and messages are those of the real kubelet.
"""

from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from imex_dra.api.meta import key_of
from imex_dra.base.clock import rfc3339
from imex_dra.base.errors import NotFound
from imex_sandbox.kubelet.client import STRATEGIC_PATCH, NodeClient
from imex_sandbox.kubelet.podactions import backoff, restart_time, should_restart
from imex_sandbox.kubelet.podstate import ContainerRun, ContainerRuns, Json, PodState, latest_run, previous_run
from imex_sandbox.kubelet.views.pod import PODS, Container, Pod, PodSpec, PodStatus

TERMINAL_PHASES = ("Succeeded", "Failed")


@dataclass
class PodStatusWriter:
    """Writes the status of one pod whenever it differs from the last one written."""

    client: NodeClient
    written: Json = field(default_factory=dict)
    current: PodStatus | None = None
    """The last status written, or the one that is being written."""

    async def write(self, pod: Pod, state: PodState) -> Pod:
        """Returns the pod with its new status."""
        status = pod_status(pod, state)
        if status == self.written:
            return pod
        self.current = msgspec.convert(status, type=PodStatus)
        # The UID makes the patch fail for a new pod of the same name.
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        try:
            updated = await self.client.patch(
                PODS, key_of(pod), patch, subresource="status", content_type=STRATEGIC_PATCH
            )
        except NotFound:
            return pod
        self.written = status
        return updated


def pod_status(pod: Pod, state: PodState) -> Json:
    spec = pod.spec
    phase = _phase(pod, state)
    conditions = [(kind, *values) for kind, values in _conditions(pod, state, phase).items()]
    return {
        "phase": phase,
        "observedGeneration": pod.metadata.generation,
        "conditions": [_condition(pod, state.now, *values) for values in conditions],
        "hostIP": state.host_ip,
        "hostIPs": [{"ip": state.host_ip}],
        **(_pod_ips(state.pod_ip) if state.pod_ip else {}),
        "startTime": pod.status.start_time or rfc3339(state.now),
        "initContainerStatuses": [container_status(pod, c, state, init=True) for c in spec.init_containers],
        "containerStatuses": [container_status(pod, c, state) for c in spec.containers],
    }


def _pod_ips(pod_ip: str) -> Json:
    # Without the directive, a strategic merge patch would keep the IP of a sandbox that was lost.
    return {"podIP": pod_ip, "podIPs": [{"$patch": "replace"}, {"ip": pod_ip}]}


def _phase(pod: Pod, state: PodState) -> str:
    spec, runs = pod.spec, state.runs
    if _init_container_failed(spec, runs):
        return _terminal_phase("Failed", pod, state)
    if not _is_initialized(spec, state):
        return "Pending" if not state.terminated else "Failed"
    latest = [latest_run(runs, container.name) for container in spec.containers]
    if None in latest:
        return "Pending" if not state.terminated else "Failed"
    if any(run is not None and run.termination is None for run in latest):
        return "Running"
    terminations = [run.termination for run in latest if run is not None and run.termination is not None]
    pairs = zip(spec.containers, terminations, strict=True)
    if any(should_restart(spec, container, end) for container, end in pairs) and not state.terminated:
        return "Running"
    succeeded = all(end.exit_code == 0 for end in terminations)
    return _terminal_phase("Succeeded" if succeeded else "Failed", pod, state)


def _terminal_phase(phase: str, pod: Pod, state: PodState) -> str:
    """Held back until the pod is terminated: a terminal phase tells the cluster that its claims are free."""
    if state.terminated or pod.status.phase in TERMINAL_PHASES:
        return phase
    started = any(latest_run(state.runs, container.name) for container in pod.spec.containers)
    return "Running" if started else "Pending"


def _init_container_failed(spec: PodSpec, runs: ContainerRuns) -> bool:
    ends = [(c, run.termination) for c in spec.init_containers if (run := latest_run(runs, c.name))]
    return any(
        end is not None and end.exit_code != 0 and not should_restart(spec, container, end)
        for container, end in ends
        if not container.is_sidecar
    )


def _is_initialized(spec: PodSpec, state: PodState) -> bool:
    if any(latest_run(state.runs, container.name) for container in spec.containers):
        return True
    return all(state.is_initialized(container) for container in spec.init_containers)


def _conditions(pod: Pod, state: PodState, phase: str) -> dict[str, tuple[bool, str, str]]:
    """Type to status, reason and message."""
    initialized = (True, "", "")
    if phase == "Succeeded":
        initialized = (True, "PodCompleted", "")
    elif not _is_initialized(pod.spec, state):
        waiting = [c.name for c in pod.spec.init_containers if not state.is_initialized(c)]
        message = f"containers with incomplete status: {_go_list(waiting)}"
        initialized = (False, "ContainersNotInitialized", message)
    ready = _readiness(pod.spec, state, phase)
    return {
        "PodReadyToStartContainers": (state.has_sandbox and not state.terminated, "", ""),
        "Initialized": initialized,
        "Ready": ready,
        "ContainersReady": ready,
        "PodScheduled": (True, "", ""),
    }


def _readiness(spec: PodSpec, state: PodState, phase: str) -> tuple[bool, str, str]:
    if phase in TERMINAL_PHASES:
        return False, "PodCompleted" if phase == "Succeeded" else "PodFailed", ""
    counted = [c for c in spec.init_containers if c.is_sidecar] + list(spec.containers)
    unready = [container.name for container in counted if not state.is_ready(container.name)]
    if unready:
        return False, "ContainersNotReady", f"containers with unready status: {_go_list(unready)}"
    return True, "", ""


def _condition(pod: Pod, now: datetime, kind: str, holds: bool, reason: str, message: str) -> Json:
    status = "True" if holds else "False"
    same = (c for c in pod.status.conditions if c.type == kind and c.status == status)
    since = next((c.last_transition_time for c in same if c.last_transition_time), rfc3339(now))
    generation = {"observedGeneration": pod.metadata.generation} if pod.metadata.generation else {}
    return {
        "type": kind,
        "status": status,
        "lastTransitionTime": since,
        **generation,
        "reason": reason or None,
        "message": message or None,
    }


def container_status(pod: Pod, container: Container, state: PodState, *, init: bool = False) -> Json:
    run, previous = latest_run(state.runs, container.name), previous_run(state.runs, container.name)
    current = _container_state(pod, container, state)
    last = _terminated(run) if "waiting" in current and run is not None else _terminated(previous)
    devices = state.devices.get(container.name)
    runs_once = init and not container.is_sidecar
    identity = {"containerID": run.id, "imageID": container.image} if run else {"imageID": ""}
    return {
        "name": container.name,
        "image": container.image,
        **identity,
        "state": current,
        "lastState": last,
        "ready": state.is_initialized(container) if runs_once else state.is_ready(container.name),
        "started": not runs_once and state.is_started(container.name),
        "restartCount": run.attempt if run else 0,
        **({"allocatedResourcesStatus": devices} if devices else {}),
    }


def _container_state(pod: Pod, container: Container, state: PodState) -> Json:
    run = latest_run(state.runs, container.name)
    if run is not None and run.termination is None:
        return {"running": {"startedAt": rfc3339(run.started_at)}}
    if (waiting := state.waiting.get(container.name)) is not None:
        return {"waiting": {"reason": waiting.reason, "message": waiting.message}}
    if run is None:
        return {"waiting": {"reason": "PodInitializing" if pod.spec.init_containers else "ContainerCreating"}}
    assert run.termination is not None
    restarts = not state.terminated and should_restart(pod.spec, container, run.termination)
    if restarts and restart_time(run) > state.now:
        delay = _go_duration(backoff(run))
        message = f"back-off {delay} restarting failed container={container.name} pod={pod.full_name}"
        return {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
    return _terminated(run)


def _terminated(run: ContainerRun | None) -> Json:
    if run is None or run.termination is None:
        return {}
    end = run.termination
    message = {"message": end.message} if end.message else {}
    return {
        "terminated": {
            "exitCode": end.exit_code,
            "reason": end.reason,
            **message,
            "startedAt": rfc3339(run.started_at),
            "finishedAt": rfc3339(end.finished_at),
            "containerID": run.id,
        }
    }


def _go_list(words: list[str]) -> str:
    return f"[{' '.join(words)}]"


def _go_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
