"""A pod's status, as the real kubelet words it: a pure function of what was wanted and what ran."""

from datetime import datetime

from imex_dra.base.clock import rfc3339
from imex_dra.sandbox.kubelet.containerstatus import container_status
from imex_dra.sandbox.kubelet.plan import restarts
from imex_dra.sandbox.kubelet.runs import Runs, latest
from imex_dra.sandbox.kubelet.situation import Json, Situation
from imex_dra.sandbox.kubelet.views.pod import Pod, PodSpec

TERMINAL = ("Succeeded", "Failed")


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
        "initContainerStatuses": [container_status(pod, c, situation, init=True) for c in spec.init_containers],
        "containerStatuses": [container_status(pod, c, situation) for c in spec.containers],
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
    return all(situation.is_through(container) for container in spec.init_containers)


def _conditions(pod: Pod, situation: Situation, phase: str) -> dict[str, tuple[bool, str, str]]:
    """Type to status, reason, message."""
    initialised = (True, "", "")
    if phase == "Succeeded":
        initialised = (True, "PodCompleted", "")
    elif not _initialised(pod.spec, situation):
        waiting = [c.name for c in pod.spec.init_containers if not situation.is_through(c)]
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
    unready = [container.name for container in counted if not situation.is_ready(container.name)]
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


def _go_list(words: list[str]) -> str:
    return f"[{' '.join(words)}]"
