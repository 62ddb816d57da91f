"""A pod's status, as the real kubelet words it: a pure function of what was wanted and what ran."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from imex_dra.base.clock import rfc3339
from imex_dra.sandbox.kubelet.plan import backoff, due, restarts
from imex_dra.sandbox.kubelet.runs import Run, Runs, Waiting, is_running, latest, previous
from imex_dra.sandbox.kubelet.views.container import Container
from imex_dra.sandbox.kubelet.views.pod import Pod, PodSpec

Json = dict[str, Any]

TERMINAL = ("Succeeded", "Failed")


class Situation(Struct, frozen=True):
    """All that a status is made of, besides the pod itself."""

    now: datetime
    runs: Runs
    waiting: Mapping[str, Waiting] = {}
    host_ip: str = ""
    pod_ip: str = ""
    devices: Mapping[str, list[Json]] = {}
    """How the devices of each container that claims some fare."""
    unstarted: frozenset[str] = frozenset()
    """Containers whose startup probe has not succeeded yet."""
    unready: frozenset[str] = frozenset()
    """Containers whose readiness probe does not succeed."""
    sandbox: bool = False
    ended: bool = False
    """Its containers are stopped for good and its claims given back: only now it may be told to be over."""


def status(pod: Pod, situation: Situation) -> Json:
    spec = pod.spec
    phase = _phase(pod, situation)
    named = [(kind, *verdict) for kind, verdict in _conditions(pod, situation, phase).items()]
    addresses = _addresses(situation.pod_ip) if situation.pod_ip else {}
    return {
        "phase": phase,
        "observedGeneration": pod.metadata.generation,
        "conditions": [_condition(pod, situation.now, *words) for words in named],
        "hostIP": situation.host_ip,
        "hostIPs": [{"ip": situation.host_ip}],
        **addresses,
        "startTime": pod.status.start_time or rfc3339(situation.now),
        "initContainerStatuses": [_container(pod, c, situation, init=True) for c in spec.init_containers],
        "containerStatuses": [_container(pod, c, situation) for c in spec.containers],
    }


def _addresses(pod_ip: str) -> Json:
    """Without the word to replace them, the API server would keep those of a sandbox that was lost."""
    return {"podIP": pod_ip, "podIPs": [{"$patch": "replace"}, {"ip": pod_ip}]}


def _phase(pod: Pod, situation: Situation) -> str:
    spec, runs = pod.spec, situation.runs
    if _init_failed(spec, runs):
        return _held_back("Failed", pod, situation)
    if not _initialised(spec, situation):
        return "Pending" if not situation.ended else "Failed"
    last = [latest(runs, container.name) for container in spec.containers]
    if None in last:
        return "Pending" if not situation.ended else "Failed"
    if any(run is not None and run.end is None for run in last):
        return "Running"
    ends = [run.end for run in last if run is not None and run.end is not None]
    coming_back = any(restarts(spec, c, end) for c, end in zip(spec.containers, ends, strict=True))
    if coming_back and not situation.ended:
        return "Running"
    return _held_back("Succeeded" if all(end.code == 0 for end in ends) else "Failed", pod, situation)


def _held_back(phase: str, pod: Pod, situation: Situation) -> str:
    if situation.ended or pod.status.phase in TERMINAL:
        return phase
    started = any(latest(situation.runs, container.name) for container in pod.spec.containers)
    return "Running" if started else "Pending"


def _init_failed(spec: PodSpec, runs: Runs) -> bool:
    ends = [(c, run.end) for c in spec.init_containers if (run := latest(runs, c.name)) and run.end]
    return any(end.code != 0 and not restarts(spec, c, end) for c, end in ends if not c.is_sidecar)


def _initialised(spec: PodSpec, situation: Situation) -> bool:
    if any(latest(situation.runs, container.name) for container in spec.containers):
        return True
    return all(_is_through(container, situation) for container in spec.init_containers)


def _is_through(container: Container, situation: Situation) -> bool:
    run = latest(situation.runs, container.name)
    if run is None:
        return False
    if container.is_sidecar:
        return container.name not in situation.unstarted
    return run.end is not None and run.end.code == 0


def _is_started(name: str, situation: Situation) -> bool:
    return is_running(situation.runs, name) and name not in situation.unstarted


def _is_ready(name: str, situation: Situation) -> bool:
    return _is_started(name, situation) and name not in situation.unready


def _conditions(pod: Pod, situation: Situation, phase: str) -> dict[str, tuple[bool, str, str]]:
    """Type to status, reason, message."""
    initialised = (True, "", "")
    if phase == "Succeeded":
        initialised = (True, "PodCompleted", "")
    elif not _initialised(pod.spec, situation):
        waiting = [c.name for c in pod.spec.init_containers if not _is_through(c, situation)]
        words = f"containers with incomplete status: {_go_list(waiting)}"
        initialised = (False, "ContainersNotInitialized", words)
    ready = _readiness(pod.spec, situation, phase)
    return {
        "PodReadyToStartContainers": (situation.sandbox and not situation.ended, "", ""),
        "Initialized": initialised,
        "Ready": ready,
        "ContainersReady": ready,
        "PodScheduled": (True, "", ""),
    }


def _readiness(spec: PodSpec, situation: Situation, phase: str) -> tuple[bool, str, str]:
    if phase in TERMINAL:
        return False, "PodCompleted" if phase == "Succeeded" else "PodFailed", ""
    counted = [c for c in spec.init_containers if c.is_sidecar] + list(spec.containers)
    unready = [container.name for container in counted if not _is_ready(container.name, situation)]
    if unready:
        return False, "ContainersNotReady", f"containers with unready status: {_go_list(unready)}"
    return True, "", ""


def _condition(pod: Pod, now: datetime, kind: str, holds: bool, reason: str, message: str) -> Json:
    verdict = "True" if holds else "False"
    same = (c for c in pod.status.conditions if c.type == kind and c.status == verdict)
    since = next((c.last_transition_time for c in same if c.last_transition_time), rfc3339(now))
    words = {name: value or None for name, value in (("reason", reason), ("message", message))}
    generation = {"observedGeneration": pod.metadata.generation} if pod.metadata.generation else {}
    return {"type": kind, "status": verdict, "lastTransitionTime": since, **generation, **words}


def _container(pod: Pod, container: Container, situation: Situation, *, init: bool = False) -> Json:
    run, before = latest(situation.runs, container.name), previous(situation.runs, container.name)
    state = _state(pod, container, situation)
    last = _terminated(run) if "waiting" in state and run is not None else _terminated(before)
    devices = situation.devices.get(container.name)
    once = init and not container.is_sidecar
    identity = {"containerID": run.id, "imageID": container.image} if run else {"imageID": ""}
    return {
        "name": container.name,
        "image": container.image,
        **identity,
        "state": state,
        "lastState": last,
        "ready": _is_through(container, situation) if once else _is_ready(container.name, situation),
        "started": not once and _is_started(container.name, situation),
        "restartCount": run.attempt if run else 0,
        **({"allocatedResourcesStatus": devices} if devices else {}),
    }


def _state(pod: Pod, container: Container, situation: Situation) -> Json:
    run = latest(situation.runs, container.name)
    if run is not None and run.end is None:
        return {"running": {"startedAt": rfc3339(run.started)}}
    if (trouble := situation.waiting.get(container.name)) is not None:
        return {"waiting": {"reason": trouble.reason, "message": trouble.message}}
    if run is None:
        return {"waiting": {"reason": "PodInitializing" if pod.spec.init_containers else "ContainerCreating"}}
    assert run.end is not None
    if not situation.ended and restarts(pod.spec, container, run.end) and due(run) > situation.now:
        return {"waiting": {"reason": "CrashLoopBackOff", "message": _backing_off(pod, container, run)}}
    return _terminated(run)


def _backing_off(pod: Pod, container: Container, run: Run) -> str:
    return f"back-off {_go_seconds(backoff(run))} restarting failed container={container.name} pod={pod.full_name}"


def _terminated(run: Run | None) -> Json:
    if run is None or run.end is None:
        return {}
    end = run.end
    message = {"message": end.message} if end.message else {}
    return {
        "terminated": {
            "exitCode": end.code,
            "reason": end.why,
            **message,
            "startedAt": rfc3339(run.started),
            "finishedAt": rfc3339(end.at),
            "containerID": run.id,
        }
    }


def _go_list(words: list[str]) -> str:
    return f"[{' '.join(words)}]"


def _go_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
