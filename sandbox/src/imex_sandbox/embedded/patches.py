"""Changes of objects: JSON merge patch (RFC 7386), and server-side apply.

Fields have managers, by path. The elements of a path are those of `fieldsV1`: `f:spec` is a field,
`k:{"name":"x"}` an entry of a list by its keys, `v:"x"` a value of a set. After an entry, `.` stands for the entry
itself.
"""

import json
from collections.abc import Iterator
from typing import Any

from imex_sandbox.embedded.lists import SET, Keys, ListKeys, key_values
from imex_sandbox.embedded.statuses import ApiError, Json

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


def apply(live: Json, applied: Json, manager: str, *, force: bool, keys: ListKeys, subresource: str = "") -> Json:
    """The live object with the applied fields. Raises a conflict that names the other managers."""
    leaves = dict(_leaves(applied, keys))
    own = (manager, "Apply", subresource)
    others = [entry for entry in managed(live) if _identity(entry) != own]
    if not force:
        _check_conflicts(live, leaves, others, keys)
    result = live
    kept = {path for entry in others for path in _paths(entry["fieldsV1"])} | set(leaves)
    for entry in managed(live):
        if entry not in others:
            gone = set(_paths(entry["fieldsV1"])) - kept
            # Whole entries of lists first, but not those in which others manage a field.
            whole = {path for path in gone if path[-1] == "." and not any(_is_in(one, path[:-1]) for one in kept)}
            for path in [*whole, *(gone - whole)]:
                result = _without(result, path)
    for path, value in leaves.items():
        result = _with(result, path, value)
    return with_manager(result, manager, "Apply", set(leaves), force=force, subresource=subresource)


def with_manager(
    obj: Json, manager: str, operation: str, paths: set[Path], *, force: bool = True, subresource: str = ""
) -> Json:
    """Records who manages these fields; with `force`, it is the only manager."""
    entries = []
    for entry in managed(obj):
        kept = set(_paths(entry["fieldsV1"]))
        if _identity(entry) == (manager, operation, subresource):
            paths = paths if operation == "Apply" else paths | kept
            continue
        if kept := kept - (_without_entries(paths) if force else set()):
            entries.append({**entry, "fieldsV1": _fields(kept)})
    if paths:
        entries.append(
            {
                "manager": manager,
                "operation": operation,
                "apiVersion": obj["apiVersion"],
                "fieldsType": "FieldsV1",
                "fieldsV1": _fields(paths),
                **({"subresource": subresource} if subresource else {}),
            }
        )
    return {**obj, "metadata": {**obj["metadata"], "managedFields": entries}}


def managed(obj: Json) -> list[Json]:
    entries: list[Json] = obj["metadata"].get("managedFields") or []
    return entries


def _identity(entry: Json) -> tuple[str, str, str]:
    return entry["manager"], entry["operation"], entry.get("subresource", "")


def changed_leaves(before: Json, after: Json, keys: ListKeys) -> set[Path]:
    old = dict(_leaves(before, keys))
    return {path for path, value in _leaves(after, keys) if old.get(path, _MISSING) != value}


_MISSING = object()


def _check_conflicts(live: Json, leaves: dict[Path, Any], others: list[Json], keys: ListKeys) -> None:
    current = dict(_leaves(live, keys))
    found = [
        (_conflict(entry), path)
        for entry in others
        for path in _paths(entry["fieldsV1"])
        if path in leaves and path[-1] != "." and current.get(path, _MISSING) != leaves[path]
    ]
    if not found:
        return
    noun = "conflict" if len(found) == 1 else "conflicts"
    texts = [f"{conflict}: {field_path(path)}" for conflict, path in found]
    causes = [
        {"reason": "FieldManagerConflict", "message": conflict, "field": field_path(path)}
        for conflict, path in found
    ]
    raise ApiError(409, f"Apply failed with {len(found)} {noun}: {', '.join(texts)}", causes=causes)


def _conflict(entry: Json) -> str:
    part = entry.get("subresource")
    return f'conflict with "{entry["manager"]}"' + (f' with subresource "{part}"' if part else "")


def field_path(path: Path) -> str:
    """As in messages: `.spec.containers[name="a"].image`."""
    text = ""
    for part in path:
        if part.startswith("f:"):
            text += f".{part[2:]}"
        elif part.startswith("k:"):
            text += (
                "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(part[2:]).items()) + "]"
            )
    return text


def _leaves(value: Any, keys: ListKeys, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and (value or not path):
        for name, child in value.items():
            inside = (*path, f"f:{name}")
            if (not path and name in _IDENTITY) or (path == ("f:metadata",) and name in _OWN_METADATA):
                continue
            yield from _leaves(child, keys, inside)
    elif isinstance(value, list) and (found := keys(path)) is not None:
        yield from _entries(value, found, keys, path)
    else:
        yield path, value


def _entries(items: list[Any], found: Keys, keys: ListKeys, path: Path) -> Iterator[tuple[Path, Any]]:
    for item in items:
        if found == SET:
            yield (*path, f"v:{json.dumps(item)}"), item
            continue
        values = key_values(item, found)
        inside = (*path, f"k:{json.dumps(values, separators=(',', ':'), sort_keys=True)}")
        yield (*inside, "."), values
        yield from _leaves(item, keys, inside)


def _is_in(path: Path, parent: Path) -> bool:
    return path[: len(parent)] == parent


def _without_entries(paths: set[Path]) -> set[Path]:
    return {path for path in paths if path[-1] != "."}


def _fields(paths: set[Path]) -> Json:
    fields: Json = {}
    for path in sorted(paths):
        node = fields
        for part in path:
            node = node.setdefault(part, {})
    return fields


def _paths(fields: Json, path: Path = ()) -> Iterator[Path]:
    if not fields:
        yield path
        return
    for name, child in fields.items():
        yield from _paths(child, (*path, name))


def _with(node: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    first, *rest = path
    if first == ".":
        return node if isinstance(node, dict) else dict(value)
    if first.startswith("f:"):
        name, obj = first[2:], node if isinstance(node, dict) else {}
        return {**obj, name: _with(obj.get(name), tuple(rest), value)}
    items = node if isinstance(node, list) else []
    if first.startswith("v:"):
        return items if value in items else [*items, value]
    index = _index(items, first)
    if index is None:
        return [*items, _with(json.loads(first[2:]), tuple(rest), value)]
    return [*items[:index], _with(items[index], tuple(rest), value), *items[index + 1 :]]


def _without(node: Any, path: Path) -> Any:
    """A container that becomes empty goes, too."""
    first, *rest = path
    if first == ".":
        return node
    if first.startswith("f:") and isinstance(node, dict) and first[2:] in node:
        name = first[2:]
        child = _without(node[name], tuple(rest)) if rest else None
        if rest and child not in ({}, []):
            return {**node, name: child}
        return {field: value for field, value in node.items() if field != name}
    if first.startswith("v:") and isinstance(node, list):
        return [value for value in node if value != json.loads(first[2:])]
    if first.startswith("k:") and isinstance(node, list) and (index := _index(node, first)) is not None:
        inner = [] if rest == ["."] else [_without(node[index], tuple(rest))]
        return [*node[:index], *inner, *node[index + 1 :]]
    return node


def _index(items: list[Any], element: str) -> int | None:
    wanted = json.loads(element[2:])
    keys = tuple(wanted)
    return next((index for index, item in enumerate(items) if key_values(item, keys) == wanted), None)
