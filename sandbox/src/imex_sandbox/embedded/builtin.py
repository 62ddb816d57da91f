"""Built-in types: their fields, by lightkube's models, and the defaults that a real API server sets.

Only kinds and fields that simulated racks use have defaults. `validation` says what is refused.
"""

import base64
from functools import cache
from importlib import import_module
from typing import Any

import msgspec
from lightkube.models.meta_v1 import ObjectMeta

from imex_sandbox.embedded.kinds import CRDS, EVENTS, NODES, PODS, Kind
from imex_sandbox.embedded.labels import labels_of
from imex_sandbox.embedded.placement import quantity
from imex_sandbox.embedded.statuses import ApiError, Json, Undecodable, invalid

_MODULES = {
    "": "core_v1",
    "apps": "apps_v1",
    "batch": "batch_v1",
    "coordination.k8s.io": "coordination_v1",
    "events.k8s.io": "events_v1",
    "resource.k8s.io": "resource_v1",
    "rbac.authorization.k8s.io": "rbac_v1",
    "admissionregistration.k8s.io": "admissionregistration_v1",
}
_NOT_READY = "node.kubernetes.io/not-ready"
_TOLERATION_SECONDS = 300
_PRIORITIES = {"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}


def decode(kind: Kind, document: Json, unknown: list[str]) -> Json:
    """Without fields that the type does not have; their paths are added to `unknown`. Raises ApiError."""
    if kind is CRDS:
        return document
    managers = document["metadata"].get("managedFields")
    # Events of the core version need no `eventTime`.
    placeholder = {"eventTime": "1970-01-01T00:00:00Z"} if kind is EVENTS and "eventTime" not in document else {}
    try:
        typed = msgspec.convert({**document, **placeholder}, _model(kind))
    except msgspec.ValidationError as error:
        raise _error(kind, document, str(error)) from error
    result: Json = msgspec.to_builtins(typed)
    for name in placeholder:
        del result[name]
    if managers is not None:
        result["metadata"]["managedFields"] = managers
    _compare(document, result, "", unknown)
    return result


def decode_metadata(kind: Kind, document: Json, unknown: list[str]) -> Json:
    """Of a custom resource: only its metadata, of which the schema says nothing."""
    metadata = document["metadata"]
    given = {name: value for name, value in metadata.items() if name != "managedFields"}
    try:
        known: Json = msgspec.to_builtins(msgspec.convert({"metadata": given}, _Head))
    except msgspec.ValidationError as error:
        raise _error(kind, document, str(error)) from error
    _compare({"metadata": given}, known, "", unknown)
    kept = {name: value for name, value in given.items() if name in known["metadata"]}
    if "managedFields" in metadata:
        kept["managedFields"] = metadata["managedFields"]
    return {**document, "metadata": kept}


def with_defaults(kind: Kind, document: Json) -> Json:
    spec = document.get("spec") or {}
    match kind.plural:
        case "pods":
            return _pod(document)
        case "namespaces":
            labels = {"kubernetes.io/metadata.name": document["metadata"]["name"]}
            metadata = {**document["metadata"], "labels": {**(document["metadata"].get("labels") or {}), **labels}}
            return {**document, "metadata": metadata, "spec": {"finalizers": ["kubernetes"], **spec}}
        case "resourceclaims":
            return {**document, "spec": _claim_spec(spec)}
        case "resourceclaimtemplates":
            return {**document, "spec": {**spec, "spec": _claim_spec(spec.get("spec") or {})}}
        case "secrets":
            return _secret(document)
        case "jobs":
            return {**document, "spec": _job_spec(document, spec)}
        case "statefulsets":
            return {**document, "spec": _stateful_set_spec(spec)}
        case "services":
            return {**document, "spec": _service_spec(spec)}
    return document


def created(kind: Kind, document: Json) -> Json:
    """What only new objects get."""
    spec = document.get("spec") or {}
    if kind is NODES:
        taints = spec.get("taints") or []
        if all(taint["key"] != _NOT_READY for taint in taints):
            taints = [*taints, {"key": _NOT_READY, "effect": "NoSchedule"}]
        return {**document, "spec": {**spec, "taints": taints}}
    if kind is PODS:
        fields = [field for field in ("affinity", "topologySpreadConstraints") if field in spec]
        selecting = {field: _with_label_keys(spec[field], labels_of(document)) for field in fields}
        status = {"phase": "Pending", "qosClass": _qos(spec)}
        return {**document, "spec": {**spec, **selecting}, "status": status}
    return document


class _Head(msgspec.Struct):
    metadata: ObjectMeta


@cache
def _model(kind: Kind) -> type[msgspec.Struct]:
    module = import_module(f"lightkube.models.{_MODULES[kind.group]}")
    model: type[msgspec.Struct] = getattr(module, kind.kind)
    return model


def _error(kind: Kind, document: Json, text: str) -> ApiError:
    what, _, where = text.partition(" - at `$")
    where = where.strip("`").lstrip(".")
    if what.startswith("Object missing required field"):
        missing = what.split("`")[1]
        field = f"{where}.{missing}" if where else missing
        return invalid(kind, document["metadata"].get("name", ""), f"{field}: Required value")
    cause = f"{kind.kind} in version {kind.version!r} cannot be handled as a {kind.kind}: {where}: {what}"
    return Undecodable(cause)


def _compare(given: Any, known: Any, path: str, unknown: list[str]) -> None:
    if isinstance(given, dict) and isinstance(known, dict):
        for name, value in given.items():
            inside = f"{path}.{name}" if path else name
            if name in known:
                _compare(value, known[name], inside, unknown)
            elif value is not None:
                unknown.append(inside)
    elif isinstance(given, list) and isinstance(known, list):
        for index, (one, other) in enumerate(zip(given, known, strict=True)):
            _compare(one, other, f"{path}[{index}]", unknown)


def _pod(document: Json) -> Json:
    return {**document, "spec": pod_spec(document.get("spec") or {})}


def pod_spec(spec: Json) -> Json:
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    tolerations = spec.get("tolerations") or []
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if all(one.get("key") not in (key, None) or one.get("effect") == "NoSchedule" for one in tolerations):
            added = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            tolerations = [*tolerations, {**added, "tolerationSeconds": _TOLERATION_SECONDS}]
    result = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "priority": _PRIORITIES.get(spec.get("priorityClassName", ""), 0),
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        **spec,
        "serviceAccountName": account,
        "serviceAccount": account,
        "tolerations": tolerations,
        "containers": [_container(container, spec) for container in spec.get("containers") or ()],
    }
    if "initContainers" in spec:
        result["initContainers"] = [_container(container, spec) for container in spec["initContainers"] or ()]
    return result


def _with_label_keys(value: Any, labels: Json) -> Any:
    """`matchLabelKeys` and `mismatchLabelKeys` of terms and constraints become part of their selectors."""
    if isinstance(value, list):
        return [_with_label_keys(one, labels) for one in value]
    if not isinstance(value, dict):
        return value
    if "topologyKey" not in value:
        return {name: _with_label_keys(inner, labels) for name, inner in value.items()}
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in value.get(field) or ()
        if key in labels
    ]
    if not added:
        return value
    selector = value["labelSelector"]
    expressions = [*(selector.get("matchExpressions") or ()), *added]
    return {**value, "labelSelector": {**selector, "matchExpressions": expressions}}


def _container(container: Json, spec: Json) -> Json:
    tag = container.get("image", "").rpartition("/")[2].partition(":")[2]
    result = {
        "imagePullPolicy": "Always" if tag in ("", "latest") else "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        **container,
        "resources": _resources(container.get("resources") or {}),
    }
    if "ports" in container:
        on_host = bool(spec.get("hostNetwork"))
        result["ports"] = [
            {**({"hostPort": port["containerPort"]} if on_host else {}), "protocol": "TCP", **port}
            for port in container["ports"]
        ]
    return result


def _resources(resources: Json) -> Json:
    """Quantities are strings, and what is limited but not requested is requested."""
    found = {
        name: {resource: quantity_text(amount) for resource, amount in amounts.items()}
        for name, amounts in resources.items()
        if name in ("limits", "requests") and amounts
    }
    if "limits" in found:
        found["requests"] = {**found["limits"], **found.get("requests", {})}
    return {**resources, **found}


def quantity_text(amount: object) -> str:
    """Refused here, because the scheduler computes with those of all pods and nodes."""
    try:
        quantity(str(amount))
    except ValueError:
        cause = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        raise Undecodable(cause) from None
    return str(amount)


def _qos(spec: Json) -> str:
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    used = [
        (container["resources"].get("requests") or {}, container["resources"].get("limits") or {})
        for container in containers
    ]
    names = ("cpu", "memory")
    if not any(name in amounts for pair in used for amounts in pair for name in names):
        return "BestEffort"
    same = all(
        name in limits and requests.get(name, limits[name]) == limits[name]
        for requests, limits in used
        for name in names
    )
    return "Guaranteed" if same else "Burstable"


def _claim_spec(spec: Json) -> Json:
    devices = dict(spec.get("devices") or {})
    requests = []
    for request in devices.get("requests") or ():
        exactly = request.get("exactly")
        if exactly is not None:
            exactly = {**exactly, "allocationMode": exactly.get("allocationMode") or "ExactCount"}
            if exactly["allocationMode"] == "ExactCount":
                exactly["count"] = exactly.get("count") or 1
            request = {**request, "exactly": exactly}
        requests.append(request)
    return {**spec, "devices": {**devices, **({"requests": requests} if requests else {})}}


def _secret(document: Json) -> Json:
    plain = document.get("stringData") or {}
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in plain.items()}
    rest = {name: value for name, value in document.items() if name != "stringData"}
    data = {**(document.get("data") or {}), **encoded}
    return {**rest, **({"data": data} if data else {}), "type": document.get("type", "Opaque")}


def _job_spec(document: Json, spec: Json) -> Json:
    uid, name = document["metadata"]["uid"], document["metadata"]["name"]
    labels = {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    template = spec.get("template") or {}
    metadata = template.get("metadata") or {}
    metadata = {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}
    defaults: Json = {
        "parallelism": 1,
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed",
        "manualSelector": False,
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}},
    }
    if "parallelism" not in spec:
        defaults["completions"] = 1
    return {**defaults, **spec, "template": {**template, "metadata": metadata}}


def _stateful_set_spec(spec: Json) -> Json:
    defaults = {"replicas": 1, "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10}
    strategy = {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}
    return {**defaults, **strategy, **spec}


def _service_spec(spec: Json) -> Json:
    ports = [{"protocol": "TCP", "targetPort": port.get("port"), **port} for port in spec.get("ports") or ()]
    defaults = {"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}
    return {**defaults, **spec, **({"ports": ports} if ports else {})}
