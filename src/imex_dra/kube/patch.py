"""The differences of two versions of a view, as a JSON Patch (RFC 6902).

A view holds only some fields of its object and is never written back as a whole: a patch names only what changes,
in lists with map keys entry by entry. So fields that a newer version of this project wrote survive an older one.
One exception: a struct whose known fields all have their defaults may be missing in the object; it is set as a
whole.

A patch needs no other read, because its first operation tests the resourceVersion: its positions in lists are
those of the version that the view was decoded from.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import NODEFAULT
from msgspec import inspect as ms

from imex_dra.api.meta import Object, Resource, T, key_of
from imex_dra.base.errors import Conflict, Invalid
from imex_dra.kube.client import APPLY_PATCH, JSON_PATCH, Client

Json = dict[str, Any]
Operations = list[Json]


def json_patch(before: Object, after: Object) -> Operations:
    """Empty if nothing has changed; without the test of the resourceVersion."""
    return list(_struct(_info(type(after)), "", before, after))


async def patch_changes(client: Client, resource: Resource[T], before: T, after: T, *, subresource: str = "") -> T:
    """Writes the differences, if there are any. Raises Conflict if the object has changed since `before`."""
    operations = json_patch(before, after)
    if not operations:
        return before
    key, version = key_of(before), before.metadata.resource_version
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    try:
        return await client.patch(
            resource, key, [test, *operations], subresource=subresource, content_type=JSON_PATCH
        )
    except Invalid as error:
        # The API server answers a failed test with the code of an invalid object, and does not say why.
        live = await client.get(resource, key)
        if live.metadata.resource_version == version:
            raise
        raise Conflict(f"{resource.kind} {key} has changed since resourceVersion {version}") from error


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


def _struct(info: ms.StructType, path: str, before: Any, after: Any) -> Iterator[Json]:
    for field in info.fields:
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            yield from _field(field, f"{path}/{field.encode_name}", old, new)


def _field(field: ms.Field, path: str, old: Any, new: Any) -> Iterator[Json]:
    if _is_default(field, new):
        # `old` is not the default, so the object has the field. To remove a field that is missing is an error.
        yield {"op": "remove", "path": path}
        return
    info = _plain(field.type)
    if _may_be_missing(field, old):
        yield _set(path, new)
    elif isinstance(info, ms.StructType):
        yield from _struct(info, path, old, new)
    elif isinstance(info, ms.DictType):
        yield from _dict(path, old, new)
    elif isinstance(info, ms.VarTupleType) and (keys := _map_keys(field.type)):
        yield from _entries(info.item_type, keys, path, old, new)
    else:
        yield _set(path, new)


def _dict(path: str, old: Json, new: Json) -> Iterator[Json]:
    for name in old.keys() - new.keys():
        yield {"op": "remove", "path": f"{path}/{_escaped(name)}"}
    for name, value in new.items():
        if name not in old or old[name] != value:
            yield _set(f"{path}/{_escaped(name)}", value)


def _entries(info: ms.Type, keys: tuple[str, ...], path: str, old: Any, new: Any) -> Iterator[Json]:
    """`order` follows the keys of the live list through the operations. A map key has the same name in JSON and in
    the view, because it is a single word.
    """
    before, after = ({tuple(getattr(item, k) for k in keys): item for item in items} for items in (old, new))
    order = list(before)
    for position in reversed(range(len(order))):
        if order[position] not in after:
            del order[position]
            yield {"op": "remove", "path": f"{path}/{position}"}
    for position, (key, item) in enumerate(after.items()):
        here = f"{path}/{position}"
        if key not in before:
            order.insert(position, key)
            yield _set(here, item)
            continue
        if order[position] != key:
            found = order.index(key, position)
            order.insert(position, order.pop(found))
            yield {"op": "move", "from": f"{path}/{found}", "path": here}
        if item != before[key]:
            yield from _struct(_struct_info(info), here, before[key], item)


def _set(path: str, value: Any) -> Json:
    return {"op": "add", "path": path, "value": msgspec.to_builtins(value)}


def _is_default(field: ms.Field, value: Any) -> bool:
    return not field.required and bool(value == field.default)


def _may_be_missing(field: ms.Field, value: Any) -> bool:
    if field.required:
        return False
    return bool(value == (field.default if field.default_factory is NODEFAULT else field.default_factory()))


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


@cache
def _info(type_: type) -> ms.StructType:
    """Takes milliseconds, more than all else that a patch needs."""
    return _struct_info(ms.type_info(type_))


def _struct_info(info: ms.Type) -> ms.StructType:
    plain = _plain(info)
    assert isinstance(plain, ms.StructType)
    return plain


def _map_keys(info: ms.Type) -> tuple[str, ...]:
    extra = info.extra_json_schema if isinstance(info, ms.Metadata) else None
    return tuple((extra or {}).get("x-kubernetes-list-map-keys", ()))


def _plain(info: ms.Type) -> ms.Type:
    if isinstance(info, ms.Metadata):
        return _plain(info.type)
    if isinstance(info, ms.UnionType):
        return _plain(next(t for t in info.types if not isinstance(t, ms.NoneType)))
    return info
