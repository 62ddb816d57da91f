"""The JSONPaths of printer columns: fields, indexes, `[*]`, and filters `[?(@.field=="value")]`."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from imex_sandbox.embedded.statuses import not_supported

_STEP = re.compile(
    r"""\.(?P<field>(?:[^.\[\]\\]|\\.)+)|\[(?P<index>-?\d+|\*)\]"""
    r"""|\[\?\(@\.(?P<key>[\w.]+)\s*==\s*(?P<quote>["'])(?P<value>.*?)(?P=quote)\)\]|\['(?P<quoted>[^']+)'\]"""
)
Step = Callable[[Any], list[Any]]


@lru_cache(1024)
def compiled(path: str) -> tuple[Step, ...]:
    """Raises ApiError if the path is not supported."""
    steps, position = [], 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise not_supported(f"the JSONPath {path!r}")
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def first(path: str, document: Any) -> Any:
    """The first result; None if there is none."""
    found = [document]
    for step in compiled(path):
        found = [result for value in found for result in step(value)]
    return found[0] if found else None


def _step(match: re.Match[str]) -> Step:
    if name := match["field"] or match["quoted"]:
        name = re.sub(r"\\(.)", r"\1", name)
        return lambda value: [value[name]] if isinstance(value, dict) and value.get(name) is not None else []
    if match["key"]:
        keys, wanted = match["key"].split("."), match["value"]
        return lambda value: [item for item in value if _get(item, keys) == wanted] if _is_list(value) else []
    if match["index"] == "*":
        return lambda value: value if _is_list(value) else []
    index = int(match["index"])
    return lambda value: value[index:][:1] if _is_list(value) else []


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _get(value: Any, keys: list[str]) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
