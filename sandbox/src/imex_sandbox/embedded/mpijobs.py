"""MPIJobs: their workers and their launcher, as the MPI Operator v0.7.0 makes them.

The CRD has fewer fields than the operator's: `activeDeadlineSeconds` and `managedBy` of the `runPolicy` are
unknown fields. It refuses other implementations than Open MPI, suspended jobs, and launchers that are workers.
`schedulingPolicy` has no effect, and templates are checked when pods are made of them. The key of a job is random
bytes: the `mpirun` of simulated containers only proves that it has them, and no ssh runs.
"""

import base64
import hashlib
import secrets

from imex_sandbox.embedded.claims import has_ended
from imex_sandbox.embedded.events import for_each, record
from imex_sandbox.embedded.kinds import CONFIG_MAPS, CRDS, JOBS, PODS, SECRETS, SERVICES, Kind
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.statuses import ApiError, Json
from imex_sandbox.embedded.storage import Key
from imex_sandbox.embedded.workloads import is_ready, owned, owner_reference, set_status

_GROUP, _VERSION, _PLURAL = "kubeflow.org", "v2beta1", "mpijobs"
_LABEL = "training.kubeflow.org"
_MANAGER = "mpi-job-controller"
_CONFIG = "/etc/mpi"
_LAUNCHER_VARIABLES = {
    "K_MPI_JOB_ROLE": "launcher",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": f"{_CONFIG}/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
}


def install(objects: Objects) -> None:
    """Its CRD."""
    integer: Json = {"type": "integer", "format": "int32"}
    template: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    policies = ["Never", "OnFailure", "Always", "ExitCode"]
    run_policy = {
        "cleanPodPolicy": {"type": "string", "enum": ["None", "Running", "All"], "default": "None"},
        "ttlSecondsAfterFinished": integer,
        "backoffLimit": integer,
        "suspend": {"type": "boolean", "enum": [False]},
        "schedulingPolicy": template,
    }
    replicas = {
        role: {
            "type": "object",
            "required": ["template"],
            "properties": {
                "replicas": {**integer, "default": count},
                "restartPolicy": {"type": "string", "enum": policies, "default": policy},
                "template": template,
            },
        }
        for role, count, policy in (("Launcher", 1, "OnFailure"), ("Worker", 0, "Never"))
    }
    creation = {"type": "string", "enum": ["AtStartup", "WaitForWorkersReady"], "default": "AtStartup"}
    spec = {
        "slotsPerWorker": {**integer, "minimum": 1, "default": 1},
        "runPolicy": {"type": "object", "properties": run_policy, "default": {}},
        "sshAuthMountPath": {"type": "string", "default": "/root/.ssh"},
        "launcherCreationPolicy": creation,
        "mpiImplementation": {"type": "string", "enum": ["OpenMPI"], "default": "OpenMPI"},
        "runLauncherAsWorker": {"type": "boolean", "enum": [False]},
        "mpiReplicaSpecs": {
            "type": "object",
            "required": ["Launcher"],
            "properties": replicas,
        },
    }
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "required": ["mpiReplicaSpecs"], "properties": spec},
            "status": template,
        },
    }
    version = {
        "name": _VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"kind": "MPIJob", "plural": _PLURAL, "singular": "mpijob"}
    definition = {"group": _GROUP, "names": names, "scope": "Namespaced", "versions": [version]}
    objects.create(CRDS, "", {"metadata": {"name": f"{_PLURAL}.{_GROUP}"}, "spec": definition}, _MANAGER)


def follow_mpi_jobs(objects: Objects) -> None:
    kind = objects.kinds.find(_GROUP, _VERSION, _PLURAL)
    if kind:
        for_each(objects, kind, _MANAGER, lambda key, job: _follow(objects, kind, key, job))


def _follow(objects: Objects, kind: Kind, key: Key, job: Json) -> None:
    if job["metadata"].get("deletionTimestamp"):
        return
    pods = {pod["metadata"]["name"]: pod for pod in owned(objects, job, key.namespace)}
    if _is(job.get("status") or {}, "Succeeded") or _is(job.get("status") or {}, "Failed"):
        policy = job["spec"]["runPolicy"]["cleanPodPolicy"]
        for name, pod in pods.items():
            doomed = policy == "All" or (policy == "Running" and not has_ended(pod))
            if doomed and not pod["metadata"].get("deletionTimestamp"):
                objects.delete(PODS, Key(key.namespace, name), {})
        return
    try:
        _create_missing(objects, key, job, pods)
    except ApiError as error:
        record(objects, job, "Warning", "MPIJobFailed", f"pod created failed: {error}", _MANAGER)
    launcher = objects.storage.get(JOBS, Key(key.namespace, f"{key.name}-launcher"))
    pods = {pod["metadata"]["name"]: pod for pod in owned(objects, job, key.namespace)}
    launchers = owned(objects, launcher.document, key.namespace) if launcher else []
    status = job_status(job, launcher.document if launcher else None, launchers, pods, objects.timestamp())
    before = {one["type"] for one in (job.get("status") or {}).get("conditions") or ()}
    set_status(objects, kind, key, job, status)
    for one in status["conditions"]:
        if one["type"] not in before:
            severity = "Warning" if one["type"] == "Failed" else "Normal"
            record(objects, job, severity, one["reason"], one["message"], _MANAGER)


def _create_missing(objects: Objects, key: Key, job: Json, pods: dict[str, Json]) -> None:
    """Raises ApiError, for example if a template is not a valid pod."""
    name, spec = key.name, job["spec"]
    count = (spec["mpiReplicaSpecs"].get("Worker") or {}).get("replicas", 0)
    workers = [f"{name}-worker-{index}" for index in range(count)]
    selector = {f"{_LABEL}/operator-name": "mpi-operator", f"{_LABEL}/job-name": name}
    hosts = [f"{worker}.{name}.{key.namespace}.svc" for worker in workers]
    discover = "".join(["#!/bin/sh\n", *(f"echo {host}\n" for host in hosts)])
    files = {
        "hostfile": "".join(f"{host} slots={spec['slotsPerWorker']}\n" for host in hosts),
        "discover_hosts.sh": discover,
    }
    _ensure(objects, SERVICES, key, job, name, {"spec": {"clusterIP": "None", "selector": selector}})
    _ensure(objects, CONFIG_MAPS, key, job, f"{name}-config", {"data": files})
    if objects.storage.get(SECRETS, Key(key.namespace, f"{name}-ssh")) is None:
        _ensure(objects, SECRETS, key, job, f"{name}-ssh", {"type": "kubernetes.io/ssh-auth", "data": _new_key()})
    for index, worker in enumerate(workers):
        if worker not in pods:
            objects.create(PODS, key.namespace, _worker(job, worker, index), _MANAGER)
    ready = sum(is_ready(pods[worker]) for worker in workers if worker in pods)
    if spec["launcherCreationPolicy"] == "AtStartup" or ready == len(workers):
        limits = {field: spec["runPolicy"].get(field) for field in ("backoffLimit", "ttlSecondsAfterFinished")}
        given = {field: value for field, value in limits.items() if value is not None}
        body = {"spec": {**given, "template": _launcher(job)}}
        _ensure(objects, JOBS, key, job, f"{name}-launcher", body)


def _ensure(objects: Objects, kind: Kind, key: Key, job: Json, name: str, body: Json) -> None:
    if objects.storage.get(kind, Key(key.namespace, name)) is None:
        metadata = {"name": name, "labels": {"app": key.name}, "ownerReferences": [owner_reference(job)]}
        objects.create(kind, key.namespace, {"metadata": metadata, **body}, _MANAGER)


def _new_key() -> Json:
    private = secrets.token_hex(32).encode()
    public = hashlib.sha256(private).hexdigest().encode()
    files = {"ssh-privatekey": private, "ssh-publickey": public}
    return {name: base64.b64encode(content).decode() for name, content in files.items()}


def _worker(job: Json, name: str, index: int) -> Json:
    replicas = job["spec"]["mpiReplicaSpecs"]["Worker"]
    made = _template(job, replicas, name, "worker", {"K_MPI_JOB_ROLE": "worker"})
    first, *others = made["spec"]["containers"]
    if not first.get("command") and not first.get("args"):
        first = {**first, "command": ["/usr/sbin/sshd", "-De"]}
    labels = {**made["metadata"]["labels"], f"{_LABEL}/replica-index": str(index)}
    metadata = {**made["metadata"], "name": name, "labels": labels, "ownerReferences": [owner_reference(job)]}
    return {"metadata": metadata, "spec": {**made["spec"], "containers": [first, *others]}}


def _launcher(job: Json) -> Json:
    name, slots = job["metadata"]["name"], str(job["spec"]["slotsPerWorker"])
    # Without GPUs: the ranks run in the workers.
    disabled = {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
    variables = {**_LAUNCHER_VARIABLES, "OMPI_MCA_orte_set_default_slots": slots, **disabled}
    replicas = job["spec"]["mpiReplicaSpecs"]["Launcher"]
    made = _template(job, replicas, f"{name}-launcher", "launcher", variables)
    files = [
        {"key": "hostfile", "path": "hostfile", "mode": 0o444},
        {"key": "discover_hosts.sh", "path": "discover_hosts.sh", "mode": 0o555},
    ]
    volume = {"name": "mpi-job-config", "configMap": {"name": f"{name}-config", "items": files}}
    return {**made, "spec": _with_volume(made["spec"], volume, _CONFIG)}


def _template(job: Json, replicas: Json, name: str, role: str, variables: dict[str, str]) -> Json:
    """The pod template of a worker or a launcher, with the key of the job and the variables of its role."""
    spec, job_name = replicas["template"].get("spec") or {}, job["metadata"]["name"]
    given = replicas["template"].get("metadata") or {}
    roles = {"operator-name": "mpi-operator", "job-name": job_name, "job-role": role}
    labels = {**(given.get("labels") or {}), **{f"{_LABEL}/{label}": value for label, value in roles.items()}}
    first, *others = spec.get("containers") or [{}]
    added = [{"name": variable, "value": value} for variable, value in variables.items()]
    policy = replicas["restartPolicy"]
    spec = {
        **spec,
        "containers": [{**first, "env": [*(first.get("env") or ()), *added]}, *others],
        "hostname": name,
        "subdomain": job_name,
        "restartPolicy": "Never" if policy == "ExitCode" else policy,
    }
    path = job["spec"]["sshAuthMountPath"]
    keys = (("ssh-privatekey", "id_rsa"), ("ssh-publickey", "id_rsa.pub"), ("ssh-publickey", "authorized_keys"))
    secret: Json = {"secretName": f"{job_name}-ssh", "items": [{"key": key, "path": file} for key, file in keys]}
    if path == "/root/.ssh":
        secret["defaultMode"] = 0o600
    metadata = {"labels": labels, "annotations": given.get("annotations") or {}}
    return {"metadata": metadata, "spec": _with_volume(spec, {"name": "ssh-auth", "secret": secret}, path)}


def _with_volume(spec: Json, volume: Json, path: str) -> Json:
    first, *others = spec["containers"]
    mounts = [*(first.get("volumeMounts") or ()), {"name": volume["name"], "mountPath": path}]
    containers = [{**first, "volumeMounts": mounts}, *others]
    return {**spec, "containers": containers, "volumes": [*(spec.get("volumes") or ()), volume]}


def job_status(
    job: Json, launcher: Json | None, launchers: list[Json], workers: dict[str, Json], now: str
) -> Json:
    """Of the launcher Job, its pods, and the workers by name."""
    where = f"MPIJob {job['metadata']['namespace']}/{job['metadata']['name']}"
    before = job.get("status") or {}
    status: Json = {**before, "startTime": before.get("startTime", now)}
    conditions = [_condition(before, "Created", "MPIJobCreated", f"{where} is created.", now)]
    phases = [pod["status"].get("phase") for pod in workers.values()]
    running = sum(pod["status"].get("phase") == "Running" for pod in launchers)
    if (running and phases.count("Running") == len(workers)) or _find(before, "Running"):
        conditions.append(_condition(before, "Running", "MPIJobRunning", f"{where} is running.", now))
    of_launcher = (launcher or {}).get("status") or {}
    counts: Json = {"active": running, "failed": of_launcher.get("failed", 0)}
    if _is(of_launcher, "Complete"):
        message = f"{where} successfully completed."
        conditions = [_ended(one) for one in conditions]
        conditions.append(_condition(before, "Succeeded", "MPIJobSucceeded", message, now))
        status["completionTime"] = of_launcher["completionTime"]
        counts = {**counts, "active": 0, "succeeded": 1}
    elif failed := _find(of_launcher, "Failed"):
        conditions = [_ended(one) for one in conditions]
        conditions.append(_condition(before, "Failed", failed["reason"], failed["message"], now))
        status["completionTime"], counts["active"] = now, 0
    of_workers = {"active": phases.count("Running"), "failed": phases.count("Failed")}
    of_workers["succeeded"] = phases.count("Succeeded")
    status["conditions"] = conditions
    status["replicaStatuses"] = {
        role: {name: count for name, count in found.items() if count}
        for role, found in (("Launcher", counts), ("Worker", of_workers))
    }
    return status


def _condition(before: Json, kind: str, reason: str, message: str, now: str) -> Json:
    made = {"type": kind, "status": "True", "reason": reason, "message": message}
    return _find(before, kind) or {**made, "lastUpdateTime": now, "lastTransitionTime": now}


def _ended(condition: Json) -> Json:
    return {**condition, "status": "False"} if condition["type"] == "Running" else condition


def _find(status: Json, kind: str) -> Json | None:
    return next((one for one in status.get("conditions") or () if one["type"] == kind), None)


def _is(status: Json, kind: str) -> bool:
    return (_find(status, kind) or {}).get("status") == "True"
