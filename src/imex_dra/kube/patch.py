"""Minimal merge patches from one version of a view to another.

A view holds only some fields of its object and is never written back as a whole. A merge patch leaves fields
alone that it does not name, except in lists, which it replaces. In a list, unknown fields are copied from the
live object, entry by entry, matched by the list's map keys. So fields that a newer version of this project wrote
survive an older one.
"""

from functools import cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec import inspect as ms

from imex_dra.api.meta import Object, Resource, T, key_of
from imex_dra.base.errors import Conflict
from imex_dra.kube.client import APPLY_PATCH, Client
from imex_dra.kube.decoding import decode

Json = dict[str, Any]

_json = msgspec.json.Decoder(Json)


def merge_patch(before: Object, after: Object, live: Json) -> Json:
    """Empty if nothing has changed."""
    return _struct_patch(_type_info(type(after)), before, after, live)


@cache
def _type_info(kind: type[Object]) -> ms.StructType:
    """Inspecting a type takes milliseconds, and there are only a few."""
    info = ms.type_info(kind)
    assert isinstance(info, ms.StructType)
    return info


async def patch_changes(client: Client, resource: Resource[T], before: T, after: T, *, subresource: str = "") -> T:
    """Writes the differences, if there are any. Raises Conflict if the object has changed since `before`."""
    if before == after:
        return before
    version = before.metadata.resource_version
    live = decode(_json, await client.get_raw(resource, key_of(before)))
    if live["metadata"]["resourceVersion"] != version:
        raise Conflict(f"{resource.kind} {key_of(before)} has changed since resourceVersion {version}")
    patch = merge_patch(before, after, live)
    if not patch:
        return before
    patch.setdefault("metadata", {})["resourceVersion"] = version
    return await client.patch(resource, key_of(before), patch, subresource=subresource)


async def apply_fields(client: Client, resource: Resource[T], live: T, fields: Json) -> T:
    """Sets these fields by server-side apply, unless the live object already has them.

    Raises Conflict if another field manager has set one of them to another value; the message names it.
    """
    if covers(msgspec.to_builtins(live), fields):
        return live
    key = key_of(live)
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        **fields,
        "metadata": {**fields.get("metadata", {}), "name": key.name, "uid": live.metadata.uid},
    }
    return await client.patch(resource, key, body, content_type=APPLY_PATCH, fieldManager=client.field_manager)


def covers(live: Any, fields: Any) -> bool:
    if isinstance(fields, dict):
        return isinstance(live, dict) and all(
            name in live and covers(live[name], value) for name, value in fields.items()
        )
    return bool(live == fields)


def _struct_patch(info: ms.StructType, before: Any, after: Any, live: Json) -> Json:
    patch = {}
    for field in info.fields:
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            patch[field.encode_name] = _change(field, old, new, live.get(field.encode_name))
    return patch


def _change(field: ms.Field, old: Any, new: Any, live: Any) -> Any:
    if not field.required and new == field.default:
        return None
    info = _plain(field.type)
    if isinstance(info, ms.StructType) and old is not None:
        return _struct_patch(info, old, new, live or {})
    if isinstance(info, ms.DictType):
        return dict.fromkeys(old.keys() - new.keys()) | {
            name: value for name, value in new.items() if old.get(name) != value
        }
    return _whole(field.type, new, live)


def _whole(info: ms.Type, value: Any, live: Any) -> Any:
    """The complete value, with the unknown fields of the live object."""
    plain = _plain(info)
    if isinstance(plain, ms.VarTupleType) and isinstance(live, list) and (keys := _map_keys(info)):
        return [_whole(plain.item_type, item, _counterpart(item, keys, live)) for item in value]
    if isinstance(plain, ms.StructType) and isinstance(live, dict):
        known = {field.encode_name: field for field in plain.fields}
        unknown = {name: content for name, content in live.items() if name not in known}
        encoded: Json = msgspec.to_builtins(value)
        nested = {
            name: _whole(field.type, getattr(value, field.name), live.get(name))
            for name, field in known.items()
            if name in encoded
        }
        return unknown | nested
    return msgspec.to_builtins(value)


def _counterpart(item: Struct, keys: list[str], live: list[Json]) -> Json:
    wanted = msgspec.to_builtins(item)
    same = (entry for entry in live if all(entry.get(key) == wanted.get(key) for key in keys))
    return next(same, {})


def _map_keys(info: ms.Type) -> list[str]:
    extra = info.extra_json_schema if isinstance(info, ms.Metadata) else None
    keys: list[str] = (extra or {}).get("x-kubernetes-list-map-keys", [])
    return keys


def _plain(info: ms.Type) -> ms.Type:
    if isinstance(info, ms.Metadata):
        return _plain(info.type)
    if isinstance(info, ms.UnionType):
        return _plain(next(t for t in info.types if not isinstance(t, ms.NoneType)))
    return info
