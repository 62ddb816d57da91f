"""The status of one container: its state, the end before it, and whether it counts as started and ready."""

from imex_dra.base.clock import rfc3339
from imex_dra.sandbox.kubelet.plan import backoff, due, restarts
from imex_dra.sandbox.kubelet.runs import Run, latest, previous
from imex_dra.sandbox.kubelet.situation import Json, Situation
from imex_dra.sandbox.kubelet.views.container import Container
from imex_dra.sandbox.kubelet.views.pod import Pod


def container_status(pod: Pod, container: Container, situation: Situation, *, init: bool = False) -> Json:
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
        "ready": situation.is_through(container) if once else situation.is_ready(container.name),
        "started": not once and situation.is_started(container.name),
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


def _go_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
