"""Label and field selectors of list and watch requests."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from imex_sandbox.embedded.kinds import Kind
from imex_sandbox.embedded.statuses import ApiError, Json

_OBJECT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_OF_EVENTS = ("reason", "type")
_FIELDS: dict[str, tuple[str, ...]] = {
    "pods": (
        *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
        *("spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName"),
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "services": ("spec.clusterIP", "spec.type"),
    "resourceslices.resource.k8s.io": ("spec.nodeName", "spec.driver"),
    "events": (*(f"involvedObject.{field}" for field in _OBJECT), *_OF_EVENTS, "reportingComponent"),
    "events.events.k8s.io": (*(f"regarding.{field}" for field in _OBJECT), *_OF_EVENTS, "reportingController"),
}
"""What can be selected by, beside the name and the namespace, as in a real API server."""
_BOOLEAN = ("spec.unschedulable", "spec.hostNetwork")

Predicate = Callable[[Json], bool]

_SET_BASED = re.compile(r"^(?P<key>\S+)\s+(?P<operator>in|notin)\s+\((?P<values>[^)]*)\)$")
_EQUALITY = re.compile(r"^(?P<key>[\w./-]+)\s*(?P<operator>!=|==|=)\s*(?P<value>[\w./-]*)$")
_FIELD = re.compile(r"(?P<key>.*?)(?P<operator>!=|==|=)(?P<value>.*)", re.DOTALL)
_TERM = re.compile(r"(?:\\.|[^,\\])+", re.DOTALL)
"""Of field selectors: in their values a comma, an equals sign and a backslash are escaped."""


@lru_cache(1024)
def selector(kind: Kind, labels: str, fields: str) -> Predicate:
    """Raises ApiError if a selector is malformed, or selects by a field that is not supported."""
    supported = ("metadata.name", *(("metadata.namespace",) if kind.namespaced else ()))
    supported += _FIELDS.get(kind.qualified, ())
    terms = [_label_term(term) for term in _split(labels)]
    terms += [_field_term(term, supported) for term in _TERM.findall(fields)]
    return lambda obj: all(term(obj) for term in terms)


def _split(text: str) -> list[str]:
    """At commas outside of parentheses."""
    return [term.strip() for term in re.split(r",(?![^(]*\))", text) if term.strip()]


def _label_term(term: str) -> Predicate:
    if match := _SET_BASED.match(term):
        key, values = match["key"], {value.strip() for value in match["values"].split(",")}
        wanted = match["operator"] == "in"
        return lambda obj: (_label(obj, key) in values) is wanted
    if match := _EQUALITY.match(term):
        key, value, equal = match["key"], match["value"], match["operator"] != "!="
        return lambda obj: (_label(obj, key) == value) is equal
    if re.fullmatch(r"!?[\w./-]+", term):
        key, wanted = term.removeprefix("!"), not term.startswith("!")
        return lambda obj: (_label(obj, key) is not None) is wanted
    raise ApiError(400, f"unable to parse requirement: {term!r}")


def _field_term(term: str, supported: tuple[str, ...]) -> Predicate:
    match = _FIELD.fullmatch(term)
    if match is None:
        raise ApiError(400, f"invalid selector: {term!r}; can't understand it")
    key, equal = match["key"], match["operator"] != "!="
    if re.search(r"[=\\]", re.sub(r"\\[\\,=]", "", match["value"])):
        raise ApiError(400, f"invalid field selector: {term!r}: an equals sign or a backslash must be escaped")
    value = re.sub(r"\\(.)", r"\1", match["value"])
    if key not in supported:
        raise ApiError(400, f"field label not supported: {key}")
    return lambda obj: (_field(obj, key) == value) is equal


def _label(obj: Json, key: str) -> str | None:
    labels: dict[str, str] = obj["metadata"].get("labels") or {}
    return labels.get(key)


def _field(obj: Json, key: str) -> str:
    value: Any = obj
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if key in _BOOLEAN:
        return "true" if value else "false"
    return "" if value is None else str(value)
