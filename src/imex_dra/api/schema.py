"""Structural OpenAPI schemas for CRDs, generated from the API types."""

from typing import Any

from msgspec import inspect as ms

Schema = dict[str, Any]

METADATA: Schema = {"type": "object"}
"""The API server has the schema of metadata; a CRD can only restrict it."""


def schema_of(type_: type) -> Schema:
    return _translate(ms.type_info(type_))


def _translate(info: ms.Type) -> Schema:
    match info:
        case ms.Metadata(type=inner, extra_json_schema=extra):
            return _translate(inner) | (extra or {})
        case ms.StructType():
            return _struct(info)
        case ms.UnionType(types=types):
            return _translate(_not_none(types))
        case ms.VarTupleType():
            return _sized({"type": "array", "items": _translate(info.item_type)}, info, "Items")
        case ms.EnumType(cls=cls):
            return {"type": "string", "enum": [member.value for member in cls]}
        case ms.StrType(pattern=pattern):
            return _sized({"type": "string"}, info, "Length") | ({"pattern": pattern} if pattern else {})
        case ms.IntType(ge=minimum, le=maximum):
            bounds = {"minimum": minimum, "maximum": maximum}
            return {"type": "integer", "format": "int64"} | {k: v for k, v in bounds.items() if v is not None}
        case ms.BoolType():
            return {"type": "boolean"}
    raise TypeError(f"no CRD schema for {info}")


def _struct(info: ms.StructType) -> Schema:
    schema: Schema = {"type": "object"}
    if doc := _own_doc(info.cls):
        schema["description"] = doc
    required = [f.encode_name for f in info.fields if f.required and f.encode_name != "metadata"]
    schema["properties"] = {f.encode_name: _property(f) for f in info.fields}
    return schema | ({"required": required} if required else {})


def _property(field: ms.Field) -> Schema:
    return METADATA if field.encode_name == "metadata" else _translate(field.type)


def _sized(schema: Schema, info: ms.VarTupleType | ms.StrType, noun: str) -> Schema:
    bounds = {f"min{noun}": info.min_length, f"max{noun}": info.max_length}
    return schema | {name: bound for name, bound in bounds.items() if bound is not None}


def _not_none(types: tuple[ms.Type, ...]) -> ms.Type:
    (inner,) = (t for t in types if not isinstance(t, ms.NoneType))
    return inner


def _own_doc(cls: type) -> str:
    return " ".join((vars(cls).get("__doc__") or "").split())
