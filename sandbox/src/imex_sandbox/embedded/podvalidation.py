"""What Kubernetes rejects in a pod or in the template of one: mistakes that manifests for racks may have.

A cause is a text that begins with the path of its field, as in a real API server. docs/embedded.md lists what is
not checked.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from imex_sandbox.embedded.placement import is_in_range, quantity
from imex_sandbox.embedded.statuses import Json, Undecodable

_ALPHANUMERIC = "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_POD_ENUMS = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
}
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_SPREAD_ENUMS = {
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway"),
    "nodeAffinityPolicy": ("Honor", "Ignore"),
    "nodeTaintsPolicy": ("Honor", "Ignore"),
}
_STANDARD_RESOURCES = ("cpu", "memory", "ephemeral-storage")


def pod_causes(spec: Json, path: str, labels: Mapping[str, str] | None = None) -> Iterator[str]:
    """`labels` are those of a new pod: their keys are not yet part of its selectors."""
    volumes = [volume["name"] for volume in spec.get("volumes") or ()]
    claims = [claim["name"] for claim in spec.get("resourceClaims") or ()]
    yield from _names(f"{path}.volumes", volumes)
    yield from _names(f"{path}.resourceClaims", claims)
    for index, claim in enumerate(spec.get("resourceClaims") or ()):
        given = [field for field in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(field)]
        if len(given) != 1:
            both = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            neither = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            yield f"{path}.resourceClaims[{index}]: Invalid value: {to_json(claim)}: {both if given else neither}"
    if not spec.get("containers"):
        yield f"{path}.containers: Required value"
    names: list[str] = []
    for field in ("containers", "initContainers"):
        containers = spec.get(field) or []
        yield from _names(f"{path}.{field}", [one["name"] for one in containers], names)
        names += [one["name"] for one in containers]
        for index, container in enumerate(containers):
            yield from _container(container, f"{path}.{field}[{index}]", volumes, claims)
    for field, values in _POD_ENUMS.items():
        yield from unsupported_values(f"{path}.{field}", spec.get(field), values)
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        yield from _toleration(toleration, f"{path}.tolerations[{index}]")
    yield from label_causes(f"{path}.nodeSelector", spec.get("nodeSelector") or {})
    for field in ("affinity", "topologySpreadConstraints"):
        for where, term in _objects(spec.get(field), f"{path}.{field}"):
            yield from _selection(term, where, labels or {})


def _container(container: Json, path: str, volumes: list[str], claims: list[str]) -> Iterator[str]:
    if not container.get("image"):
        yield f"{path}.image: Required value"
    yield from unsupported_values(f"{path}.imagePullPolicy", container.get("imagePullPolicy"), _PULL_POLICIES)
    mounts = container.get("volumeMounts") or []
    for index, mount in enumerate(mounts):
        where = f"{path}.volumeMounts[{index}]"
        if mount["name"] not in volumes:
            yield f"{where}.name: Not found: {to_json(mount['name'])}"
        if mount["mountPath"] in [other["mountPath"] for other in mounts[:index]]:
            yield f"{where}.mountPath: Invalid value: {to_json(mount['mountPath'])}: must be unique"
    resources = container.get("resources") or {}
    listed = [(claim["name"], claim.get("request")) for claim in resources.get("claims") or ()]
    for index, (name, request) in enumerate(listed):
        where = f"{path}.resources.claims[{index}]"
        if name not in claims:
            known = ", ".join(map(to_json, claims)) or "empty"
            what = f"must be one of the names in pod.spec.resourceClaims which is {known}"
            yield f"{where}: Not found: {to_json(name)}: {what}"
        if (name, request) in listed[:index]:
            yield f"{where}: Duplicate value: {to_json(name)}"
    yield from _amounts(resources.get("limits") or {}, resources.get("requests") or {}, f"{path}.resources")


def _amounts(limits: Json, requests: Json, path: str) -> Iterator[str]:
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            where = f"{path}.{field}[{name}]: Invalid value:"
            if "/" not in name and name not in _STANDARD_RESOURCES and not name.startswith("hugepages-"):
                yield f"{where} {to_json(name)}: must be a standard resource for containers"
            value = quantity(str(amount))
            if not is_in_range(value):
                yield f"{where} {to_json(amount)}: is out of range"
            elif value < 0:
                yield f"{where} {to_json(amount)}: must be greater than or equal to 0"
            elif "/" in name and value != value.to_integral_value():
                yield f"{where} {to_json(amount)}: must be an integer"
    for name, amount in requests.items():
        limit = limits.get(name)
        if limit is None and "/" in name:
            yield f"{path}.limits: Required value: Limit must be set for non overcommitable resources"
        elif limit is not None and "/" in name and quantity(str(amount)) != quantity(str(limit)):
            yield f"{path}.requests: Invalid value: {to_json(amount)}: must be equal to {name} limit of {limit}"
        elif limit is not None and quantity(str(amount)) > quantity(str(limit)):
            what = f"must be less than or equal to {name} limit of {limit}"
            yield f"{path}.requests: Invalid value: {to_json(amount)}: {what}"


def _toleration(toleration: Json, path: str) -> Iterator[str]:
    operator, value = toleration.get("operator") or "Equal", toleration.get("value")
    yield from unsupported_values(f"{path}.operator", operator, ("Equal", "Exists"))
    yield from unsupported_values(f"{path}.effect", toleration.get("effect") or None, _EFFECTS)
    if not toleration.get("key") and operator == "Equal":
        what = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield f'{path}.operator: Invalid value: "": {what}'
    if operator == "Exists" and value:
        yield f"{path}.operator: Invalid value: {to_json(value)}: value must be empty when `operator` is 'Exists'"
    if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
        what = (
            f"{to_json(toleration.get('effect', ''))}: effect must be 'NoExecute' when `tolerationSeconds` is set"
        )
        yield f"{path}.effect: Invalid value: {what}"


def _selection(term: Json, path: str, labels: Mapping[str, str]) -> Iterator[str]:
    """An object inside of an affinity or a spread constraint: a term, a requirement or a constraint."""
    if term.get("topologyKey") == "":
        yield f"{path}.topologyKey: Required value: can not be empty"
    if term.get("nodeSelectorTerms") == []:
        yield f"{path}.nodeSelectorTerms: Required value: must have at least one node selector term"
    operator, values = term.get("operator"), term.get("values") or []
    numeric = ("Gt", "Lt") if ".nodeAffinity." in path else ()
    if operator in ("In", "NotIn") and not values:
        yield f"{path}.values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
    elif operator in ("Exists", "DoesNotExist") and values:
        yield f"{path}.values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
    elif operator in numeric and len(values) != 1:
        yield f"{path}.values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"
    elif operator is not None and operator not in ("In", "NotIn", "Exists", "DoesNotExist", *numeric):
        yield f"{path}.operator: Invalid value: {to_json(operator)}: not a valid selector operator"
    for field in ("maxSkew", "minDomains"):
        if term.get(field) is not None and term[field] <= 0:
            yield f"{path}.{field}: Invalid value: {term[field]}: must be greater than zero"
    for field, supported in _SPREAD_ENUMS.items():
        yield from unsupported_values(f"{path}.{field}", term.get(field), supported)
    selector = term.get("labelSelector")
    for field in ("matchLabelKeys", "mismatchLabelKeys"):
        keys = term.get(field) or []
        if keys and selector is None:
            yield f"{path}.{field}: Forbidden: must not be specified when labelSelector is not set"
        selected = {*(selector or {}).get("matchLabels", {}), *_keys((selector or {}).get("matchExpressions"))}
        for index, key in enumerate(keys):
            if key in labels and key in selected:
                yield f"{path}[{index}]: Invalid value: {to_json(key)}: exists in both {field} and labelSelector"


def _keys(expressions: Iterable[Json] | None) -> list[str]:
    return [one["key"] for one in expressions or ()]


def _objects(value: Any, path: str) -> Iterator[tuple[str, Json]]:
    """All that are inside, with their paths. The keys of `matchLabels` are those of users, not fields."""
    if isinstance(value, dict):
        yield path, value
        for name, inner in value.items():
            if name != "matchLabels":
                yield from _objects(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _objects(inner, f"{path}[{index}]")


def _names(path: str, names: list[str], others: Iterable[str] = ()) -> Iterator[str]:
    for index, name in enumerate(names):
        where = f"{path}[{index}].name"
        if not name:
            yield f"{where}: Required value"
        elif not _LABEL.fullmatch(name):
            what = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'"
            yield f"{where}: Invalid value: {to_json(name)}: {what}"
        elif name in names[:index] or name in others:
            yield f"{where}: Duplicate value: {to_json(name)}"


def unsupported_values(path: str, value: str | None, supported: Iterable[str]) -> Iterator[str]:
    if value is not None and value not in supported:
        values = ", ".join(map(to_json, supported))
        yield f"{path}: Unsupported value: {to_json(value)}: supported values: {values}"


def label_causes(path: str, labels: Mapping[str, Any]) -> Iterator[str]:
    for key, value in labels.items():
        if not isinstance(value, str):
            raise Undecodable(f"{path}: {to_json(value)} is not a string")
        if bad := key_cause(key):
            yield f"{path}: {bad}"
        if len(value) > 63:
            yield f"{path}: Invalid value: {to_json(value)}: must be no more than 63 bytes"
        elif value and not _QUALIFIED.fullmatch(value):
            what = f"a valid label must be an empty string or consist of {_ALPHANUMERIC}"
            yield f"{path}: Invalid value: {to_json(value)}: {what}"


def key_cause(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if (slash and not _PREFIX.fullmatch(prefix)) or not _QUALIFIED.fullmatch(name):
        what = "prefix part must be a lowercase RFC 1123 subdomain" if _QUALIFIED.fullmatch(name) else "name part"
        return f"Invalid value: {to_json(key)}: {what} must consist of {_ALPHANUMERIC}"
    return ""


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
