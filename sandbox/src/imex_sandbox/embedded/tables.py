"""What `kubectl get` prints: the columns of each kind, as a real API server computes them."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from imex_sandbox.embedded import jsonpaths
from imex_sandbox.embedded.definitions import Definitions
from imex_sandbox.embedded.kinds import Kind
from imex_sandbox.embedded.podrows import pod_cells
from imex_sandbox.embedded.statuses import Json

Cell = str | int | float | bool | None
Cells = Callable[[Json, datetime], list[Cell]]


class Columns(NamedTuple):
    names: tuple[str, ...]
    """A name that begins with `+` is shown with `-o wide` only; one that ends with `#` is a number."""
    cells: Cells
    types: tuple[str, ...] = ()
    """Of the columns of a CRD."""

    def definitions(self) -> list[Json]:
        types = self.types or [
            "date" if name == "Created At" else "integer" if name.endswith("#") else "string"
            for name in self.names
        ]
        return [
            {
                "name": name.strip("+#"),
                "type": kind,
                "format": "name" if name.strip("+") == "Name" else "",
                "description": "",
                "priority": 1 if name.startswith("+") else 0,
            }
            for name, kind in zip(self.names, types, strict=True)
        ]


class Tables:
    def __init__(self, definitions: Definitions, now: Callable[[], datetime]) -> None:
        self._definitions = definitions
        self._now = now

    def columns(self, kind: Kind) -> Columns:
        definition = self._definitions.of(kind)
        if definition is None:
            return _BUILT_IN.get(kind.plural, _DEFAULT)
        if not definition.columns:
            return _DEFAULT
        own = definition.columns
        names = ("Name", *(("+" if column.priority else "") + column.name for column in own))

        def cells(document: Json, now: datetime) -> list[Cell]:
            found = [_custom(jsonpaths.first(column.json_path, document), column.type, now) for column in own]
            return [document["metadata"]["name"], *found]

        return Columns(names, cells, ("string", *(column.type for column in own)))

    def table(
        self, kind: Kind, documents: Iterable[Json], metadata: Json, include: str, *, head: bool = True
    ) -> Json:
        """Without `head`: for the second and later events of a watch."""
        columns, now = self.columns(kind), self._now()
        rows = [{"cells": columns.cells(one, now), "object": _included(one, include)} for one in documents]
        definitions = columns.definitions() if head else None
        top = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
        return {**top, "columnDefinitions": definitions, "rows": rows}


def _included(document: Json, include: str) -> Json | None:
    if include == "Object":
        return document
    if include == "None":
        return None
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": document["metadata"]}


def human_duration(seconds: float) -> str:
    """As kubectl prints ages."""
    total = int(seconds)
    if total < 0:
        return "0s" if total >= -1 else "<invalid>"
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return f"{minutes}m{total % 60}s" if total % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y{days % 365}d"


def age(text: str | None, now: datetime) -> str:
    if not text:
        return "<unknown>"
    return human_duration((now - datetime.fromisoformat(text).astimezone(UTC)).total_seconds())


def _created(document: Json, now: datetime) -> str:
    return age(document["metadata"].get("creationTimestamp"), now)


def _custom(value: Any, kind: str, now: datetime) -> Cell:
    if value is None:
        return None
    if kind == "date":
        return age(value, now)
    if isinstance(value, dict | list):
        return str(value)
    return value if isinstance(value, str | int | float | bool) else str(value)


def _name(document: Json) -> str:
    return str(document["metadata"]["name"])


def _node(document: Json, now: datetime) -> list[Cell]:
    status, labels = document.get("status") or {}, document["metadata"].get("labels") or {}
    states = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    ready = {"True": "Ready", "False": "NotReady"}.get(states.get("Ready", ""), "NotReady")
    if "Ready" not in states:
        ready = "Unknown"
    if (document.get("spec") or {}).get("unschedulable"):
        ready += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = ",".join(sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix)))
    addresses = {one["type"]: one["address"] for one in reversed(status.get("addresses") or ())}
    info = status.get("nodeInfo") or {}
    wide = [
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        *(info.get(name) or "<unknown>" for name in ("osImage", "kernelVersion", "containerRuntimeVersion")),
    ]
    return [
        _name(document),
        ready,
        roles or "<none>",
        _created(document, now),
        info.get("kubeletVersion", ""),
        *wide,
    ]


def _event(document: Json, now: datetime) -> list[Cell]:
    """Of the core version (`events.to_core`)."""
    about, source = document.get("involvedObject") or {}, document.get("source") or {}
    series = document.get("series") or {}
    at = document.get("eventTime")
    seen = series.get("lastObservedTime") or document.get("lastTimestamp") or at
    first = document.get("firstTimestamp") or at
    reporter = source.get("component") or document.get("reportingComponent") or ""
    host = source.get("host") or document.get("reportingInstance") or ""
    return [
        age(seen, now),
        document.get("type", ""),
        document.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        f"{reporter}, {host}" if host else reporter,
        (document.get("message") or "").strip(),
        age(first, now),
        series.get("count") or document.get("count") or 1,
        _name(document),
    ]


def _job(document: Json, now: datetime) -> list[Cell]:
    spec, status = document["spec"], document.get("status") or {}
    true = {one["type"] for one in status.get("conditions") or () if one["status"] == "True"}
    phases = ("Complete", "Failed", "Suspended", "FailureTarget")
    state = next((name for name in phases if name in true), "Running")
    completions = spec.get("completions")
    wanted = str(completions) if completions is not None else "1"
    started, ended = status.get("startTime"), status.get("completionTime")
    until = datetime.fromisoformat(ended).astimezone(UTC) if ended else now
    took = age(started, until) if started else ""
    cells = [_name(document), state, f"{status.get('succeeded', 0)}/{wanted}", took, _created(document, now)]
    return [*cells, *_templates(spec), _selector(spec)]


def _stateful_set(document: Json, now: datetime) -> list[Cell]:
    spec, status = document["spec"], document.get("status") or {}
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}"
    return [_name(document), ready, _created(document, now), *_templates(spec)]


def _daemon_set(document: Json, now: datetime) -> list[Cell]:
    spec, status = document["spec"], document.get("status") or {}
    counts = ("desired", "current", "ready", "updated", "available")
    names = ["desiredNumberScheduled", "currentNumberScheduled", "numberReady"]
    names += ["updatedNumberScheduled", "numberAvailable"]
    numbers = [status.get(name, 0) for name, _ in zip(names, counts, strict=True)]
    wanted = spec["template"].get("spec", {}).get("nodeSelector") or {}
    where = ",".join(f"{key}={value}" for key, value in sorted(wanted.items())) or "<none>"
    return [_name(document), *numbers, where, _created(document, now), *_templates(spec), _selector(spec)]


def _templates(spec: Json) -> list[Cell]:
    containers = spec["template"].get("spec", {}).get("containers") or ()
    return [",".join(one["name"] for one in containers), ",".join(one.get("image", "") for one in containers)]


def _selector(spec: Json) -> str:
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>"


def _claim(document: Json, now: datetime) -> list[Cell]:
    status = document.get("status") or {}
    states = [
        *(["deleted"] if document["metadata"].get("deletionTimestamp") else []),
        *(["allocated"] if status.get("allocation") else []),
        *(["reserved"] if status.get("reservedFor") else []),
    ]
    if not status.get("allocation"):
        states.append("pending")
    return [_name(document), ",".join(states), _created(document, now)]


def _slice(document: Json, now: datetime) -> list[Cell]:
    spec = document["spec"]
    return [
        _name(document),
        spec.get("nodeName", ""),
        spec["driver"],
        spec["pool"]["name"],
        _created(document, now),
    ]


def _service(document: Json, now: datetime) -> list[Cell]:
    spec = document["spec"]
    ports = ",".join(f"{port['port']}/{port.get('protocol', 'TCP')}" for port in spec.get("ports") or ())
    selected = ",".join(f"{key}={value}" for key, value in sorted((spec.get("selector") or {}).items()))
    address = spec.get("clusterIP", "<none>")
    cells = [_name(document), spec["type"], address, "<none>", ports or "<none>", _created(document, now)]
    return [*cells, selected or "<none>"]


def _binding(document: Json, now: datetime) -> list[Cell]:
    role, subjects = document["roleRef"], document.get("subjects") or ()
    groups = [
        ", ".join(
            f"{one['namespace']}/{one['name']}" if kind == "ServiceAccount" else one["name"]
            for one in subjects
            if one["kind"] == kind
        )
        for kind in ("User", "Group", "ServiceAccount")
    ]
    return [_name(document), f"{role['kind']}/{role['name']}", _created(document, now), *groups]


def _counted(*fields: str) -> Cells:
    def cells(document: Json, now: datetime) -> list[Cell]:
        count = sum(len(document.get(field) or ()) for field in ("data", "binaryData"))
        return [
            _name(document),
            *(document.get(field, "") for field in fields),
            count,
            _created(document, now),
        ]

    return cells


def _at(*path: str) -> Cells:
    def cells(document: Json, now: datetime) -> list[Cell]:
        value: Any = document
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return [_name(document), value or "", _created(document, now)]

    return cells


def _policy(document: Json, now: datetime) -> list[Cell]:
    spec = document["spec"]
    kind = spec.get("paramKind")
    text = f"{kind['apiVersion']}/{kind['kind']}" if kind else "<unset>"
    return [_name(document), len(spec.get("validations") or ()), text, _created(document, now)]


def _policy_binding(document: Json, now: datetime) -> list[Cell]:
    spec = document["spec"]
    return [_name(document), spec.get("policyName", ""), "<unset>", _created(document, now)]


_DEFAULT = Columns(("Name", "Age"), lambda document, now: [_name(document), _created(document, now)])
_CREATED_AT = Columns(
    ("Name", "Created At"), lambda document, now: [_name(document), document["metadata"]["creationTimestamp"]]
)
_BINDINGS = Columns(("Name", "Role", "Age", "+Users", "+Groups", "+ServiceAccounts"), _binding)
_POD_NAMES = ("Name", "Ready", "Status", "Restarts", "Age", "+IP", "+Node", "+Nominated Node", "+Readiness Gates")
_NODE_NAMES = ("Name", "Status", "Roles", "Age", "Version", "+Internal-IP", "+External-IP", "+OS-Image")
_EVENT_NAMES = (
    "Last Seen",
    "Type",
    "Reason",
    "Object",
    "+Subobject",
    "+Source",
    "Message",
    "+First Seen",
    "+Count",
)
_JOB_NAMES = ("Name", "Status", "Completions", "Duration", "Age", "+Containers", "+Images", "+Selector")
_DAEMON_NAMES = ("Name", "Desired#", "Current#", "Ready#", "Up-to-date#", "Available#", "Node Selector", "Age")
_SERVICE_NAMES = ("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "+Selector")

_BUILT_IN = {
    "pods": Columns(_POD_NAMES, lambda document, now: pod_cells(document, lambda text: age(text, now))),
    "nodes": Columns((*_NODE_NAMES, "+Kernel-Version", "+Container-Runtime"), _node),
    "namespaces": Columns(("Name", "Status", "Age"), _at("status", "phase")),
    "configmaps": Columns(("Name", "Data", "Age"), _counted()),
    "secrets": Columns(("Name", "Type", "Data", "Age"), _counted("type")),
    "services": Columns(_SERVICE_NAMES, _service),
    "events": Columns((*_EVENT_NAMES, "+Name"), _event),
    "statefulsets": Columns(("Name", "Ready", "Age", "+Containers", "+Images"), _stateful_set),
    "daemonsets": Columns((*_DAEMON_NAMES, "+Containers", "+Images", "+Selector"), _daemon_set),
    "jobs": Columns(_JOB_NAMES, _job),
    "leases": Columns(("Name", "Holder", "Age"), _at("spec", "holderIdentity")),
    "resourceclaims": Columns(("Name", "State", "Age"), _claim),
    "resourceslices": Columns(("Name", "Node", "Driver", "Pool", "Age"), _slice),
    "roles": _CREATED_AT,
    "clusterroles": _CREATED_AT,
    "rolebindings": _BINDINGS,
    "clusterrolebindings": _BINDINGS,
    "validatingadmissionpolicies": Columns(("Name", "Validations#", "ParamKind", "Age"), _policy),
    "validatingadmissionpolicybindings": Columns(("Name", "PolicyName", "ParamRef", "Age"), _policy_binding),
    "customresourcedefinitions": _CREATED_AT,
}
