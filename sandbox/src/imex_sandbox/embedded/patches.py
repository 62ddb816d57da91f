"""Changes of objects: JSON merge patch (RFC 7386), and the part of server-side apply that our programs use.

Fields have managers, by path. Lists are atomic: the merge by keys that a real API server does for some lists is
not supported, and an apply that would need it is refused.
"""

from collections.abc import Iterator
from typing import Any

from imex_sandbox.embedded.statuses import ApiError, Json, not_supported

Path = tuple[str, ...]

_IDENTITY = {"apiVersion", "kind"}
_OWN_METADATA = {"name", "namespace", "uid", "resourceVersion", "managedFields", "creationTimestamp", "generation"}


def merge(target: Any, patch: Any) -> Any:
    """The target is not changed; unchanged parts are shared."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def apply(live: Json, applied: Json, manager: str, *, force: bool) -> Json:
    """The live object with the applied fields. Raises a conflict that names the other manager."""
    leaves = dict(_leaves(applied))
    for path, value in leaves.items():
        if any(isinstance(item, dict) for item in (value if isinstance(value, list) else ())):
            raise not_supported(f"server-side apply of the list {'.'.join(path)}")
    others = [entry for entry in managed(live) if entry["manager"] != manager]
    if not force:
        _check_conflicts(live, leaves, others)
    result = live
    for entry in managed(live):
        if entry["manager"] == manager and entry["operation"] == "Apply":
            for path in _paths(entry["fieldsV1"]):
                if path not in leaves and not any(path in set(_paths(other["fieldsV1"])) for other in others):
                    result = _without(result, path)
    for path, value in leaves.items():
        result = _with(result, path, value)
    return with_manager(result, manager, "Apply", set(leaves), force=force)


def with_manager(obj: Json, manager: str, operation: str, paths: set[Path], *, force: bool = True) -> Json:
    """Records who manages these fields; with `force`, it is the only manager."""
    entries = []
    for entry in managed(obj):
        kept = set(_paths(entry["fieldsV1"])) - (paths if force else set())
        if (entry["manager"], entry["operation"]) == (manager, operation):
            kept = set() if operation == "Apply" else kept - paths
            paths = paths | kept
            continue
        if kept:
            entries.append({**entry, "fieldsV1": _fields(kept)})
    if paths:
        entries.append(
            {"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": _fields(paths)}
        )
    return {**obj, "metadata": {**obj["metadata"], "managedFields": entries}}


def managed(obj: Json) -> list[Json]:
    entries: list[Json] = obj["metadata"].get("managedFields") or []
    return entries


def changed_leaves(before: Json, after: Json) -> set[Path]:
    old = dict(_leaves(before))
    return {path for path, value in _leaves(after) if old.get(path, _MISSING) != value}


_MISSING = object()


def _check_conflicts(live: Json, leaves: dict[Path, Any], others: list[Json]) -> None:
    current = dict(_leaves(live))
    for entry in others:
        for path in _paths(entry["fieldsV1"]):
            if path in leaves and current.get(path, _MISSING) != leaves[path]:
                where = "." + ".".join(path)
                raise ApiError(409, f'Apply failed with 1 conflict: conflict with "{entry["manager"]}": {where}')


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for name, child in value.items():
        inside = (*path, name)
        if (len(inside) == 1 and name in _IDENTITY) or (path == ("metadata",) and name in _OWN_METADATA):
            continue
        yield from _leaves(child, inside)


def _fields(paths: set[Path]) -> Json:
    fields: Json = {}
    for path in sorted(paths):
        node = fields
        for part in path:
            node = node.setdefault(f"f:{part}", {})
    return fields


def _paths(fields: Json, path: Path = ()) -> Iterator[Path]:
    if not fields:
        yield path
        return
    for name, child in fields.items():
        yield from _paths(child, (*path, name.removeprefix("f:")))


def _with(obj: Json, path: Path, value: Any) -> Json:
    first, *rest = path
    child = obj.get(first)
    inner = _with(child if isinstance(child, dict) else {}, tuple(rest), value) if rest else value
    return {**obj, first: inner}


def _without(obj: Json, path: Path) -> Json:
    first, *rest = path
    if first not in obj:
        return obj
    if not rest:
        return {name: value for name, value in obj.items() if name != first}
    child = obj[first]
    return {**obj, first: _without(child, tuple(rest))} if isinstance(child, dict) else obj
