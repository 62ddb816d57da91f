"""Label and field selectors of list and watch requests."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from imex_sandbox.embedded.statuses import ApiError, Json

_FIELDS = ("metadata", "spec", "status", "involvedObject", "regarding", "reason", "type", "reportingController")

Predicate = Callable[[Json], bool]

_SET_BASED = re.compile(r"^(?P<key>\S+)\s+(?P<operator>in|notin)\s+\((?P<values>[^)]*)\)$")
_EQUALITY = re.compile(r"^(?P<key>[\w./-]+)\s*(?P<operator>!=|==|=)\s*(?P<value>[\w.-]*)$")


@lru_cache(1024)
def selector(labels: str, fields: str) -> Predicate:
    """Raises ApiError if a selector is malformed."""
    terms = [_label_term(term) for term in _split(labels)] + [_field_term(term) for term in _split(fields)]
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


def _field_term(term: str) -> Predicate:
    match = _EQUALITY.match(term)
    if match is None:
        raise ApiError(400, f"invalid selector: {term!r}; can't understand it")
    path, value, equal = match["key"].split("."), match["value"], match["operator"] != "!="
    if path[0] not in _FIELDS:
        raise ApiError(400, f"field label not supported: {match['key']}")
    return lambda obj: (_field(obj, path) == value) is equal


def _label(obj: Json, key: str) -> str | None:
    labels: dict[str, str] = obj["metadata"].get("labels") or {}
    return labels.get(key)


def _field(obj: Json, path: list[str]) -> str:
    value: Any = obj
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)
