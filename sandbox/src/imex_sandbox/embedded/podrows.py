"""The row of a pod in `kubectl get pods`: its state in one word, from the states of its containers."""

from collections.abc import Callable

from imex_sandbox.embedded.statuses import Json


def pod_cells(pod: Json, age: Callable[[str | None], str]) -> list[str | int | float | bool | None]:
    spec, status = pod["spec"], pod.get("status") or {}
    statuses = status.get("containerStatuses") or []
    ready = sum(1 for one in statuses if one.get("ready") and "running" in (one.get("state") or {}))
    restarts = [*statuses, *(status.get("initContainerStatuses") or ())]
    addresses = status.get("podIPs") or ()
    gates = spec.get("readinessGates") or ()
    return [
        pod["metadata"]["name"],
        f"{ready}/{len(spec['containers'])}",
        state(pod),
        _restarts(restarts, age),
        age(pod["metadata"].get("creationTimestamp")),
        addresses[0]["ip"] if addresses else "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"0/{len(gates)}" if gates else "<none>",
    ]


def state(pod: Json) -> str:
    status = pod.get("status") or {}
    word = status.get("reason") or status.get("phase") or "Unknown"
    if any(one.get("reason") == "SchedulingGated" for one in status.get("conditions") or ()):
        word = "SchedulingGated"
    initializing = _initializing(pod, status)
    if initializing:
        word = initializing
    else:
        has_running = False
        for one in reversed(status.get("containerStatuses") or ()):
            current = one.get("state") or {}
            if (current.get("waiting") or {}).get("reason"):
                word = current["waiting"]["reason"]
            elif "terminated" in current:
                word = _ended(current["terminated"])
            elif one.get("ready") and "running" in current:
                has_running = True
        if word == "Completed" and has_running:
            word = "Running" if _is_ready(status) else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return str(word)


def _initializing(pod: Json, status: Json) -> str:
    containers = pod["spec"].get("initContainers") or ()
    for index, one in enumerate(status.get("initContainerStatuses") or ()):
        current = one.get("state") or {}
        ended = current.get("terminated")
        if ended is not None and ended.get("exitCode") == 0:
            continue
        if ended is not None:
            return f"Init:{_ended(ended)}"
        reason = (current.get("waiting") or {}).get("reason", "")
        if reason and reason != "PodInitializing":
            return f"Init:{reason}"
        return f"Init:{index}/{len(containers)}"
    return ""


def _ended(terminated: Json) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _is_ready(status: Json) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())


def _restarts(statuses: list[Json], age: Callable[[str | None], str]) -> str:
    count = sum(one.get("restartCount", 0) for one in statuses)
    ends = [((one.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for one in statuses]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({age(last)} ago)" if count and last else str(count)
