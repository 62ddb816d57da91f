"""Structural schemas of CRDs: pruning, defaults, validation with messages of a real API server, and CEL rules.

Validation is by jsonschema, rules by Google's CEL. Both are loaded when the first CRD is created.
"""

import base64
import binascii
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from imex_sandbox.embedded.lists import SET, Keys, ListKeys
from imex_sandbox.embedded.statuses import ApiError, Cause, Json

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_RULES = "x-kubernetes-validations"
_CHECKED = ("x-kubernetes-embedded-resource",)
"""Not supported: it is better to refuse a CRD than to accept objects that a real API server refuses."""

_BEFORE_RULES = ("type", "enum", "required", "maxItems", "maxLength", "maxProperties")
_UNCHECKED = Cause(
    "<nil>",
    "FieldValueInvalid",
    "Invalid value: null: some validation rules were not checked because the object was invalid; correct the"
    " existing errors to complete validation",
)


class Schema:
    """Of one version of a CRD."""

    def __init__(self, schema: Json) -> None:
        from jsonschema import FormatChecker
        from jsonschema.validators import Draft4Validator

        for where, part in _parts(schema, ()):
            for extension in _CHECKED:
                if extension in part:
                    raise ApiError(501, f"{extension} at {'.'.join(where)} is not supported by the embedded API")
        self._schema = schema
        checker = FormatChecker(formats=())
        checker.checks("date-time", (ValueError, TypeError))(_is_time)
        checker.checks("byte", (ValueError, TypeError, binascii.Error))(_is_base64)
        self._validator = Draft4Validator(_as_json_schema(schema), format_checker=checker)
        self._rules = [_Rules(where, part[_RULES]) for where, part in _parts(schema, ()) if _RULES in part]

    def prune(self, document: Json, unknown: list[str]) -> Json:
        """Without fields that the schema does not have; their paths are added to `unknown`."""
        identity = {name: document[name] for name in ("apiVersion", "kind", "metadata") if name in document}
        rest = {name: value for name, value in document.items() if name not in identity}
        return {**identity, **_pruned(rest, self._schema, "", unknown)}

    def with_defaults(self, document: Json) -> Json:
        filled: Json = _defaulted(document, self._schema)
        return filled

    def causes(self, document: Json, old: Json | None) -> list[Cause]:
        """Why the document is invalid; empty if it is valid."""
        errors = sorted(
            self._validator.iter_errors(document), key=lambda error: list(map(str, error.absolute_path))
        )
        found = [cause for error in errors for cause in _causes(error)]
        if self._rules and any(error.validator in _BEFORE_RULES for error in errors):
            return [*found, _UNCHECKED]
        return [*found, *(cause for rules in self._rules for cause in rules.broken(document, old))]

    def list_keys(self) -> ListKeys:
        def keys(path: tuple[str, ...]) -> Keys | None:
            node = self._schema
            for part in path:
                if part.startswith("f:"):
                    properties, name = node.get("properties") or {}, part[2:]
                    node = properties.get(name) or node.get("additionalProperties") or {}
                else:
                    node = node.get("items") or {}
                node = node if isinstance(node, dict) else {}
            if path[:1] == ("f:metadata",):
                return {"f:ownerReferences": ("uid",), "f:finalizers": SET}.get(path[-1])
            match node.get("x-kubernetes-list-type"):
                case "map":
                    return tuple(node["x-kubernetes-list-map-keys"])
                case "set":
                    return SET
            return None

        return keys


class _Rules:
    """The CEL rules of one part of a schema. Only parts that are reached by names, not inside lists or maps."""

    def __init__(self, where: tuple[str, ...], rules: list[Json]) -> None:
        from cel_expr_python import cel

        if "[]" in where:
            raise ApiError(501, f"CEL rules inside lists and maps ({'.'.join(where)}) are not supported here")
        self._where = where
        environment = cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN})
        self._error = cel.Type.ERROR
        self._rules = []
        for rule in rules:
            try:
                compiled = environment.compile(rule["rule"])
            except RuntimeError as error:
                raise ApiError(501, f"the CEL rule {rule['rule']!r} is not supported here: {error}") from error
            self._rules.append((rule, compiled, "oldSelf" in rule["rule"]))

    def broken(self, document: Json, old: Json | None) -> Iterator[Cause]:
        present, before = _at(document, self._where), _at(old, self._where)
        if present is None:
            return
        for rule, compiled, is_transition in self._rules:
            if is_transition and before is None:
                continue
            result = compiled.eval(data={"self": present, "oldSelf": before})
            if result.type() == self._error:
                message = f"Invalid value: rule evaluation error: {result}: evaluating rule: {rule['rule']}"
                yield Cause(".".join(self._where), "FieldValueInvalid", message)
            elif result.value() is not True:
                text = rule.get("message") or f"failed rule: {rule['rule']}"
                yield Cause(".".join(self._where), "FieldValueInvalid", f"Invalid value: {text}")


def _at(document: Any, where: tuple[str, ...]) -> Any:
    for name in where:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _parts(schema: Json, where: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Json]]:
    yield where, schema
    for name, child in (schema.get("properties") or {}).items():
        yield from _parts(child, (*where, name))
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from _parts(inner, (*where, "[]"))


def _as_json_schema(schema: Json) -> Json:
    """`nullable` and `x-kubernetes-int-or-string` in terms of JSON Schema."""
    result = {name: value for name, value in schema.items() if not name.startswith("x-") and name != "default"}
    if schema.get("x-kubernetes-int-or-string"):
        result["type"] = ["integer", "string"]
    if schema.get("nullable") and "type" in result:
        result["type"] = [*([result["type"]] if isinstance(result["type"], str) else result["type"]), "null"]
    if "properties" in schema:
        result["properties"] = {name: _as_json_schema(child) for name, child in schema["properties"].items()}
    for name in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(name), dict):
            result[name] = _as_json_schema(schema[name])
    for name in ("allOf", "anyOf", "oneOf"):
        if name in schema:
            result[name] = [_as_json_schema(child) for child in schema[name]]
    return result


def _pruned(value: Any, schema: Json, path: str, unknown: list[str]) -> Any:
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [_pruned(item, items, f"{path}[{index}]", unknown) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    properties, rest = schema.get("properties") or {}, schema.get("additionalProperties")
    result = {}
    for name, child in value.items():
        inside = f"{path}.{name}" if path else name
        if name in properties:
            result[name] = _pruned(child, properties[name], inside, unknown)
        elif rest is not None:
            result[name] = _pruned(child, rest, inside, unknown) if isinstance(rest, dict) else child
        elif schema.get(_PRESERVE):
            result[name] = child
        else:
            unknown.append(inside)
    return result


def _defaulted(value: Any, schema: Json) -> Any:
    if isinstance(value, list):
        return [_defaulted(item, schema.get("items") or {}) for item in value]
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for name, child in (schema.get("properties") or {}).items():
        missing = result.get(name) is None and not child.get("nullable")
        if missing and "default" in child:
            result[name] = child["default"]
        if name in result:
            result[name] = _defaulted(result[name], child)
    rest = schema.get("additionalProperties")
    if isinstance(rest, dict):
        known = schema.get("properties") or {}
        result = {name: child if name in known else _defaulted(child, rest) for name, child in result.items()}
    return result


def _causes(error: Any) -> Iterator[Cause]:
    """In the words of a real API server, where it has them."""
    field = _field(error.absolute_path)
    shown = _shown(error.instance)
    value, limit = f"Invalid value: {shown}", error.validator_value
    match error.validator:
        case "required":
            for name in limit:
                if name not in error.instance:
                    yield Cause(f"{field}.{name}".lstrip("."), "FieldValueRequired", "Required value")
        case "type":
            wanted = limit if isinstance(limit, str) else limit[0]
            kind = _type_of(error.instance)
            message = f'Invalid value: "{kind}": {field} in body must be of type {wanted}: "{kind}"'
            yield Cause(field, "FieldValueTypeInvalid", message)
        case "enum":
            supported = ", ".join(json.dumps(one) for one in limit)
            yield Cause(
                field, "FieldValueNotSupported", f"Unsupported value: {shown}: supported values: {supported}"
            )
        case "minimum":
            message = f"{value}: {field} in body should be greater than or equal to {limit}"
            yield Cause(field, "FieldValueInvalid", message)
        case "maximum":
            message = f"{value}: {field} in body should be less than or equal to {limit}"
            yield Cause(field, "FieldValueInvalid", message)
        case "maxLength":
            yield Cause(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")
        case "minLength":
            message = f"{value}: {field} in body should be at least {limit} chars long"
            yield Cause(field, "FieldValueInvalid", message)
        case "pattern":
            yield Cause(field, "FieldValueInvalid", f"{value}: {field} in body should match '{limit}'")
        case "maxItems":
            message = f"Too many: {len(error.instance)}: must have at most {limit} items"
            yield Cause(field, "FieldValueTooMany", message)
        case "format":
            message = f"{value}: {field} in body must be of type {limit}: {shown}"
            yield Cause(field, "FieldValueInvalid", message)
        case _:
            yield Cause(field, "FieldValueInvalid", f"{value}: {error.message}")


def _field(path: Any) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def _shown(value: Any) -> str:
    return json.dumps(value)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _is_time(value: object) -> bool:
    return not isinstance(value, str) or bool(datetime.fromisoformat(value))


def _is_base64(value: object) -> bool:
    return not isinstance(value, str) or base64.b64decode(value, validate=True) is not None
