"""Jobs and StatefulSets: their pods, and their status."""

import re
from datetime import datetime

from imex_sandbox.embedded.claims import has_ended
from imex_sandbox.embedded.events import for_each, record
from imex_sandbox.embedded.kinds import JOBS, PODS, STATEFUL_SETS, Kind
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.statuses import ApiError, Json
from imex_sandbox.embedded.storage import Key, owners

_MANAGER = "embedded-controllers"
_TRACKING = "batch.kubernetes.io/job-tracking"
"""The finalizer of a pod that its Job has not counted yet."""


def follow_jobs(objects: Objects) -> None:
    for_each(objects, JOBS, "job-controller", lambda key, job: _follow_job(objects, key, job))
    found = [one.document["metadata"] for _, one in objects.storage.all(JOBS)]
    # Deleted in the foreground, a Job waits for its pods, and they would wait for it to count them.
    jobs = {metadata["uid"] for metadata in found if not metadata.get("deletionTimestamp")}
    for key, one in objects.storage.all(PODS):
        if _is_tracked(one.document) and jobs.isdisjoint(owners(one.document)):
            _untrack(objects, key, one.document)


def _follow_job(objects: Objects, key: Key, job: Json) -> None:
    if job["metadata"].get("deletionTimestamp"):
        return
    pods = owned(objects, job, key.namespace)
    if not _finished(job.get("status") or {}):
        status = job_status(job, pods, objects.timestamp())
        set_status(objects, JOBS, key, job, status)
        for pod in pods:
            if _is_tracked(pod) and _is_over(pod):
                _untrack(objects, _key(pod), pod)
        for _ in range(0 if _finished(status) else missing_pods(job, status)):
            _create(objects, key, job, {"generateName": f"{key.name}-", "finalizers": [_TRACKING]})
        return
    for pod in pods:
        if _is_tracked(pod):
            _untrack(objects, _key(pod), pod)
        if not _is_over(pod):
            objects.delete(PODS, _key(pod), {})
    _delete_expired(objects, key, job)


def _delete_expired(objects: Objects, key: Key, job: Json) -> None:
    seconds = job["spec"].get("ttlSecondsAfterFinished")
    ended = max(one["lastTransitionTime"] for one in job["status"]["conditions"])
    if seconds is not None and (objects.now() - datetime.fromisoformat(ended)).total_seconds() >= seconds:
        objects.delete(JOBS, key, {})


def missing_pods(job: Json, status: Json) -> int:
    """How many pods to create now."""
    spec, active, succeeded = job["spec"], status.get("active", 0), status.get("succeeded", 0)
    parallelism: int = spec["parallelism"]
    completions = spec.get("completions")
    if spec["suspend"] or (completions is None and succeeded):
        return 0
    left: int = parallelism if completions is None else completions - succeeded
    missing: int = min(parallelism, left) - active
    return max(0, missing)


def job_status(job: Json, pods: list[Json], now: str) -> Json:
    """Pods are counted once, while they have the finalizer; afterwards they may be deleted."""
    spec, before = job["spec"], job.get("status") or {}
    ended = [pod for pod in pods if _is_tracked(pod) and _is_over(pod)]
    new = sum(pod["status"].get("phase") == "Succeeded" for pod in ended)
    succeeded, failed = before.get("succeeded", 0) + new, before.get("failed", 0) + len(ended) - new
    active = sum(not _is_over(pod) for pod in pods)
    status: Json = {
        "ready": sum(is_ready(pod) for pod in pods if not has_ended(pod)),
        "terminating": sum(1 for pod in pods if pod["metadata"].get("deletionTimestamp")),
        "uncountedTerminatedPods": {},
    }
    for name, count in (("active", active), ("succeeded", succeeded), ("failed", failed)):
        if count:
            status[name] = count
    conditions = _suspension(spec, before, now)
    if not spec["suspend"]:
        status["startTime"] = before.get("startTime", now)
    wanted = spec.get("completions")
    is_complete = succeeded >= wanted if wanted is not None else bool(succeeded) and not active
    if is_complete:
        status["completionTime"] = now
        reason = ("CompletionsReached", "Reached expected number of succeeded pods")
        conditions += [_condition(kind, now, *reason) for kind in ("SuccessCriteriaMet", "Complete")]
    elif failed > spec["backoffLimit"] or _restarted_too_often(job, pods):
        reason = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        conditions += [_condition(kind, now, *reason) for kind in ("FailureTarget", "Failed")]
    return {**status, **({"conditions": conditions} if conditions else {})}


def _suspension(spec: Json, before: Json, now: str) -> list[Json]:
    """The condition of a Job that is suspended, or was when it was created."""
    found = [one for one in before.get("conditions") or () if one["type"] == "Suspended"]
    if spec["suspend"]:
        return found or [_condition("Suspended", now, "JobSuspended", "Job suspended")]
    return [
        one
        if one["status"] == "False"
        else {**_condition("Suspended", now, "JobResumed", "Job resumed"), "status": "False"}
        for one in found
    ]


def _is_tracked(pod: Json) -> bool:
    return _TRACKING in (pod["metadata"].get("finalizers") or ())


def _is_over(pod: Json) -> bool:
    """A pod that is deleted before it has succeeded counts as failed."""
    return has_ended(pod) or bool(pod["metadata"].get("deletionTimestamp"))


def _untrack(objects: Objects, key: Key, pod: Json) -> None:
    left = [one for one in pod["metadata"]["finalizers"] if one != _TRACKING]
    objects.patch(PODS, key, {"metadata": {"finalizers": left or None}}, manager=_MANAGER)


def _key(pod: Json) -> Key:
    return Key(pod["metadata"]["namespace"], pod["metadata"]["name"])


def _restarted_too_often(job: Json, pods: list[Json]) -> bool:
    """With the restart policy OnFailure, restarts of containers count like failed pods."""
    spec = job["spec"]
    if spec["template"]["spec"].get("restartPolicy") != "OnFailure":
        return False
    statuses = [one for pod in pods if not has_ended(pod) for one in pod["status"].get("containerStatuses") or ()]
    restarts = sum(one.get("restartCount", 0) for one in statuses)
    return bool(restarts and restarts >= spec["backoffLimit"])


def _condition(kind: str, now: str, reason: str, message: str) -> Json:
    times = {"lastProbeTime": now, "lastTransitionTime": now}
    return {"type": kind, "status": "True", **times, "reason": reason, "message": message}


def _finished(status: Json) -> bool:
    return any(
        one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in status.get("conditions") or ()
    )


def follow_stateful_sets(objects: Objects) -> None:
    controller = "statefulset-controller"
    for_each(objects, STATEFUL_SETS, controller, lambda key, wanted: _follow_stateful_set(objects, key, wanted))


def _follow_stateful_set(objects: Objects, key: Key, wanted: Json) -> None:
    if wanted["metadata"].get("deletionTimestamp"):
        return
    pods = {pod["metadata"]["name"]: pod for pod in owned(objects, wanted, key.namespace)}
    set_status(objects, STATEFUL_SETS, key, wanted, statefulset_status(wanted, pods))
    create, delete = stateful_set_changes(wanted, pods)
    for name in delete:
        objects.delete(PODS, Key(key.namespace, name), {})
    for name in create:
        labels = {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": _ordinal(name)}
        subdomain = {"hostname": name, "subdomain": wanted["spec"].get("serviceName", "")}
        _create(objects, key, wanted, {"name": name}, labels, subdomain)


def stateful_set_changes(wanted: Json, pods: dict[str, Json]) -> tuple[list[str], list[str]]:
    """The names of pods to create and to delete now. In order, unless the policy is Parallel."""
    spec, prefix = wanted["spec"], wanted["metadata"]["name"]
    names = [f"{prefix}-{number}" for number in range(spec["replicas"])]
    surplus = sorted((name for name in pods if name not in names), key=lambda name: int(_ordinal(name)))
    ended = [name for name in names if name in pods and has_ended(pods[name])]
    delete = [name for name in (*ended, *reversed(surplus)) if not pods[name]["metadata"].get("deletionTimestamp")]
    missing = [name for name in names if name not in pods]
    if spec["podManagementPolicy"] == "Parallel":
        return missing, delete
    first = next((name for name in names if name not in pods or not is_ready(pods[name])), None)
    return [first] if first in missing and first is not None else [], delete[:1]


def statefulset_status(wanted: Json, pods: dict[str, Json]) -> Json:
    ready = sum(map(is_ready, pods.values()))
    status = {
        "observedGeneration": wanted["metadata"]["generation"],
        "replicas": len(pods),
        "currentReplicas": len(pods),
        "updatedReplicas": len(pods),
        "availableReplicas": ready,
        "collisionCount": 0,
    }
    return {**status, **({"readyReplicas": ready} if ready else {})}


def _ordinal(name: str) -> str:
    found = re.search(r"-(\d+)$", name)
    return found[1] if found else "0"


def is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")


def owned(objects: Objects, owner: Json, namespace: str) -> list[Json]:
    uid = owner["metadata"]["uid"]
    return [one.document for _, one in objects.storage.all(PODS, namespace) if uid in owners(one.document)]


def owner_reference(owner: Json) -> Json:
    metadata, identity = owner["metadata"], {field: owner[field] for field in ("apiVersion", "kind")}
    named = {**identity, "name": metadata["name"], "uid": metadata["uid"]}
    return {**named, "controller": True, "blockOwnerDeletion": True}


def _create(
    objects: Objects,
    key: Key,
    owner: Json,
    naming: Json,
    labels: Json | None = None,
    fields: Json | None = None,
) -> None:
    template = owner["spec"]["template"]
    given = template.get("metadata") or {}
    metadata = {
        **naming,
        "labels": {**(given.get("labels") or {}), **(labels or {})},
        "annotations": given.get("annotations") or {},
        "ownerReferences": [owner_reference(owner)],
    }
    try:
        objects.create(PODS, key.namespace, {"metadata": metadata, "spec": {**template["spec"], **(fields or {})}})
    except ApiError as error:
        # A later pass tries again. A pod of the same name that is not gone yet is no error.
        if error.code != 409:
            controller = f"{owner['kind'].lower()}-controller"
            record(objects, owner, "Warning", "FailedCreate", f"Error creating: {error}", controller)


def set_status(objects: Objects, kind: Kind, key: Key, live: Json, status: Json) -> None:
    if status != (live.get("status") or {}):
        objects.update(kind, key, {**live, "status": status}, subresource="status", manager=_MANAGER)
