"""What Kubernetes rejects in an object of a built-in kind.

What would be accepted without the effect that users expect is refused with 501.
"""

from collections.abc import Iterator
from typing import Any

from imex_sandbox.embedded.builtin import pod_spec, quantity_text
from imex_sandbox.embedded.kinds import CLASSES, NODES, PODS, Kind
from imex_sandbox.embedded.labels import labels_of, matches
from imex_sandbox.embedded.placement import is_in_range, quantity
from imex_sandbox.embedded.podvalidation import key_cause, label_causes, pod_causes, to_json, unsupported_values
from imex_sandbox.embedded.statuses import ApiError, Json, Undecodable, invalid, not_supported

_NOT_NEGATIVE = {
    "jobs": ("parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished"),
    "statefulsets": ("replicas",),
}
_IMMUTABLE = {
    "jobs": ("completions", "completionMode", "selector", "template"),
    "resourceclaims": ("",),
    "resourceclaimtemplates": ("",),
}
_MUTABLE_OF_STATEFUL_SETS = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)
_ONLY: dict[str, Json] = {
    "jobs": {
        "completionMode": "NonIndexed",
        "podReplacementPolicy": "TerminatingOrFailed",
        "managedBy": "kubernetes.io/job-controller",
        "manualSelector": False,
        **dict.fromkeys(("activeDeadlineSeconds", "podFailurePolicy", "successPolicy", "backoffLimitPerIndex")),
        "maxFailedIndexes": None,
    },
    "statefulsets": {"volumeClaimTemplates": [], "minReadySeconds": 0, "ordinals": None},
    "pods": {"activeDeadlineSeconds": None, "resources": None, "overhead": None},
}
"""Fields that have no effect here, with the one value that they may have nevertheless."""
_CRITICAL = ("system-node-critical", "system-cluster-critical")
_POD_UPDATE = (
    "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to"
    " existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was"
    " previously negative)"
)


def check_metadata(kind: Kind, metadata: Json) -> None:
    for key, value in (metadata.get("annotations") or {}).items():
        if not isinstance(value, str):
            raise Undecodable(f"metadata.annotations[{key}]: {to_json(value)} is not a string")
    causes = [
        *label_causes("metadata.labels", metadata.get("labels") or {}),
        *(
            f"metadata.annotations: {bad}"
            for key in metadata.get("annotations") or ()
            if (bad := key_cause(key.lower()))
        ),
    ]
    if causes:
        raise invalid(kind, metadata["name"], *causes)


def check(kind: Kind, document: Json, old: Json | None) -> None:
    """Of a built-in kind, with its defaults. Raises ApiError."""
    spec, before = document.get("spec") or {}, None if old is None else old.get("spec") or {}
    if spec != before:
        if causes := list(_causes(kind, document, spec, before)):
            raise invalid(kind, document["metadata"]["name"], *causes)
        if what := _unsupported(kind, spec) or (before and _unsupported_change(kind, spec, before)):
            raise not_supported(what)
        if kind is PODS:
            _check_classes(document["metadata"], spec)
    if kind is NODES:
        for amounts in ("allocatable", "capacity"):
            for amount in ((document.get("status") or {}).get(amounts) or {}).values():
                if not is_in_range(quantity(quantity_text(amount))):
                    cause = f"status.{amounts}: Invalid value: {to_json(amount)}: is out of range"
                    raise invalid(kind, document["metadata"]["name"], cause)


def _causes(kind: Kind, document: Json, spec: Json, before: Json | None) -> Iterator[str]:
    for field in _NOT_NEGATIVE.get(kind.plural, ()):
        if spec.get(field) is not None and spec[field] < 0:
            yield f"spec.{field}: Invalid value: {spec[field]}: must be greater than or equal to 0"
    if kind is PODS:
        yield from pod_causes(spec, "spec", labels_of(document) if before is None else None)
    if kind.plural in ("jobs", "statefulsets", "daemonsets"):
        yield from _template(kind, document, spec)
    if kind.plural in ("resourceclaims", "resourceclaimtemplates"):
        is_template = kind.plural == "resourceclaimtemplates"
        yield from _claim(spec["spec"] if is_template else spec, "spec.spec" if is_template else "spec")
    if kind is CLASSES:
        yield from _selectors(spec.get("selectors"), "spec.selectors")
    if before is None:
        return
    if kind is PODS and _fixed(spec) != _fixed(before):
        yield _POD_UPDATE
    gates = [one["name"] for one in before.get("schedulingGates") or ()]
    for index, gate in enumerate(spec.get("schedulingGates") or () if kind is PODS else ()):
        if gate["name"] not in gates:
            what = f"only deletion is allowed, but found new scheduling gate '{gate['name']}'"
            yield f"spec.schedulingGates[{index}].name: Forbidden: {what}"
    if kind is PODS and any(one not in spec["tolerations"] for one in before["tolerations"]):
        yield "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
    others = {field for field in (*spec, *before) if field not in _MUTABLE_OF_STATEFUL_SETS}
    if kind.plural == "statefulsets" and any(spec.get(field) != before.get(field) for field in others):
        allowed = ", ".join(f"'{field}'" for field in _MUTABLE_OF_STATEFUL_SETS[:-1])
        fields = f"{allowed} and '{_MUTABLE_OF_STATEFUL_SETS[-1]}'"
        yield f"spec: Forbidden: updates to statefulset spec for fields other than {fields} are forbidden"
    for field in _IMMUTABLE.get(kind.plural, ()):
        value, old = (one.get(field) if field else one for one in (spec, before))
        # Some fields of the template of a suspended Job can be changed, which is not supported.
        if value != old and not (field == "template" and before["suspend"]):
            yield f"spec.{field}".rstrip(".") + f": Invalid value: {to_json(value)}: field is immutable"


def _claim(spec: Json, path: str) -> Iterator[str]:
    """What the scheduler relies on."""
    for index, request in enumerate((spec.get("devices") or {}).get("requests") or ()):
        where, exactly = f"{path}.devices.requests[{index}]", request.get("exactly")
        if exactly is None:
            if not request.get("firstAvailable"):
                yield f"{where}: Required value: exactly one of `exactly` or `firstAvailable` is required"
            continue
        mode, count = exactly["allocationMode"], exactly.get("count")
        yield from unsupported_values(f"{where}.exactly.allocationMode", mode, ("All", "ExactCount"))
        if mode == "All" and count:
            what = f"{count}: must not be specified when allocationMode is 'All'"
            yield f"{where}.exactly.count: Invalid value: {what}"
        elif mode == "ExactCount" and count <= 0:
            yield f"{where}.exactly.count: Invalid value: {count}: must be greater than zero"
        if not exactly.get("deviceClassName"):
            yield f"{where}.exactly.deviceClassName: Required value"
        yield from _selectors(exactly.get("selectors"), f"{where}.exactly.selectors")


def _selectors(selectors: list[Json] | None, path: str) -> Iterator[str]:
    for index, selector in enumerate(selectors or ()):
        if not selector.get("cel"):
            yield f"{path}[{index}].cel: Required value"


def _template(kind: Kind, document: Json, spec: Json) -> Iterator[str]:
    template = spec.get("template") or {}
    labels, policy = (template.get("metadata") or {}).get("labels") or {}, "Always"
    yield from label_causes("spec.template.labels", labels)
    if kind.plural == "jobs":
        uid, policy = document["metadata"]["uid"], (template.get("spec") or {}).get("restartPolicy", "Always")
        if policy == "Always":
            yield 'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'
        generated = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
        if not spec["manualSelector"] and spec["selector"] != generated:
            yield f"spec.selector: Invalid value: {to_json(spec['selector'])}: `selector` not auto-generated"
    elif spec.get("selector") == {}:
        yield f"spec.selector: Invalid value: {{}}: empty selector is invalid for {kind.kind.lower()}"
    if not matches(spec.get("selector"), labels):
        what = f"{to_json(labels)}: `selector` does not match template `labels`"
        yield f"spec.template.metadata.labels: Invalid value: {what}"
    inside = pod_spec(template.get("spec") or {})  # raises ApiError for malformed quantities
    # A real API server sets no requests in templates.
    yield from pod_causes(template.get("spec") or {}, "spec.template.spec")
    yield from unsupported_values("spec.template.spec.restartPolicy", inside["restartPolicy"], (policy,))
    if kind.plural == "statefulsets" and spec["podManagementPolicy"] not in ("OrderedReady", "Parallel"):
        value = to_json(spec["podManagementPolicy"])
        yield f"spec.podManagementPolicy: Invalid value: {value}: must be 'OrderedReady' or 'Parallel'"


def _unsupported(kind: Kind, spec: Json) -> str:
    """What would be stored without the effect that users expect."""
    for field, accepted in _ONLY.get(kind.plural, {}).items():
        if spec.get(field) not in (None, accepted):
            return f"a {kind.kind} with {field}"
    match kind.plural:
        case "services" if spec.get("clusterIP") != "None":
            return "a Service with a cluster IP (set clusterIP: None)"
        case "pods" if any("persistentVolumeClaim" in volume for volume in spec.get("volumes") or ()):
            return "a Pod with a PersistentVolumeClaim"
        case "pods" if _selects_namespaces(spec.get("affinity") or {}):
            return "a Pod with an affinity that selects namespaces by labels"
        case "jobs" | "statefulsets":
            return _unsupported(PODS, spec["template"].get("spec") or {})
    return ""


def _selects_namespaces(affinity: Any) -> bool:
    if isinstance(affinity, dict):
        return bool(affinity.get("namespaceSelector")) or any(map(_selects_namespaces, affinity.values()))
    return isinstance(affinity, list) and any(map(_selects_namespaces, affinity))


def _unsupported_change(kind: Kind, spec: Json, before: Json) -> str:
    match kind.plural:
        case "statefulsets" if spec["template"] != before["template"]:
            return "a change of the template of a StatefulSet (create it again: there are no rolling updates)"
        case "jobs" if spec["template"] != before["template"]:
            return "a change of the template of a suspended Job"
        case "jobs" if spec["suspend"] and not before["suspend"]:
            return "suspending a Job that exists"
        case "jobs" if spec["parallelism"] < before["parallelism"]:
            return "a lower parallelism of a Job that exists"
    return ""


def _check_classes(metadata: Json, spec: Json) -> None:
    """There are no others: neither PriorityClasses nor RuntimeClasses can be created."""
    # Without the generated part of the name, so that the message is the same at each attempt of a controller.
    name = metadata.get("generateName") or metadata["name"]
    priority, runtime = spec.get("priorityClassName"), spec.get("runtimeClassName")
    if priority and priority not in _CRITICAL:
        raise ApiError(403, f'pods "{name}" is forbidden: no PriorityClass with name {priority} was found')
    if runtime:
        raise ApiError(403, f'pods "{name}" is forbidden: pod rejected: RuntimeClass "{runtime}" not found')


def _fixed(spec: Json) -> Json:
    """What cannot change in a pod."""
    fixed = {name: value for name, value in spec.items() if name not in ("tolerations", "schedulingGates")}
    for name in ("containers", "initContainers"):
        if name in fixed:
            fixed[name] = [{**container, "image": ""} for container in fixed[name]]
    return fixed
