"""Bodies of requests in Kubernetes' protobuf encoding. Some commands send it, such as `kubectl create namespace`.

Only the types of those commands are known, by the field numbers of Kubernetes' `generated.proto` files. Responses
are always JSON, which every client accepts.
"""

import base64
from collections.abc import Iterator
from typing import Any, NamedTuple

from imex_sandbox.embedded.statuses import ApiError, Json

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"


class Field(NamedTuple):
    name: str
    type: "str | Message" = "string"
    """string, bytes, int, bool; `map` and `bytes map` are maps with strings as keys."""
    repeated: bool = False


Message = dict[int, Field]

_METADATA: Message = {
    1: Field("name"),
    2: Field("generateName"),
    3: Field("namespace"),
    5: Field("uid"),
    6: Field("resourceVersion"),
    11: Field("labels", "map"),
    12: Field("annotations", "map"),
    14: Field("finalizers", repeated=True),
}
_HEAD = {1: Field("metadata", _METADATA)}
_NAME = {1: Field("name")}
_RULE: Message = {
    number: Field(name, repeated=True)
    for number, name in enumerate(("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"), 1)
}
_SUBJECT = {1: Field("kind"), 2: Field("apiGroup"), 3: Field("name"), 4: Field("namespace")}
_ROLE_REFERENCE = {1: Field("apiGroup"), 2: Field("kind"), 3: Field("name")}
_ROLE: Message = {**_HEAD, 2: Field("rules", _RULE, repeated=True)}
_BINDING: Message = {**_HEAD, 2: Field("subjects", _SUBJECT, repeated=True), 3: Field("roleRef", _ROLE_REFERENCE)}
_BOUND = {1: Field("kind"), 2: Field("apiVersion"), 3: Field("name"), 4: Field("uid")}
_TOKEN: Message = {
    1: Field("audiences", repeated=True),
    3: Field("boundObjectRef", _BOUND),
    4: Field("expirationSeconds", "int"),
}

_PRECONDITIONS = {1: Field("uid"), 2: Field("resourceVersion")}
_DELETE_OPTIONS: Message = {
    1: Field("gracePeriodSeconds", "int"),
    2: Field("preconditions", _PRECONDITIONS),
    3: Field("orphanDependents", "bool"),
    4: Field("propagationPolicy"),
    5: Field("dryRun", repeated=True),
}
"""Of every group: `kubectl drain` sends them."""

_KINDS: dict[tuple[str, str], Message] = {
    ("v1", "Namespace"): {
        **_HEAD,
        2: Field("spec", {1: Field("finalizers", repeated=True)}),
        3: Field("status", {}),
    },
    ("v1", "ConfigMap"): {
        **_HEAD,
        2: Field("data", "map"),
        3: Field("binaryData", "bytes map"),
        4: Field("immutable", "bool"),
    },
    ("v1", "Secret"): {
        **_HEAD,
        2: Field("data", "bytes map"),
        3: Field("type"),
        4: Field("stringData", "map"),
        5: Field("immutable", "bool"),
    },
    ("v1", "ServiceAccount"): {
        **_HEAD,
        3: Field("imagePullSecrets", _NAME, repeated=True),
        4: Field("automountServiceAccountToken", "bool"),
    },
    ("rbac.authorization.k8s.io/v1", "Role"): _ROLE,
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): _ROLE,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): _BINDING,
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): _BINDING,
    ("authentication.k8s.io/v1", "TokenRequest"): {**_HEAD, 2: Field("spec", _TOKEN), 3: Field("status", {})},
}


def decode(body: bytes) -> Json:
    """Raises ApiError if the type is not known."""
    if not body.startswith(_MAGIC):
        raise ApiError(400, "the body of the request is not in Kubernetes' protobuf encoding")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        head = {number: value.decode() for number, value in _fields(envelope[1])}
        identity = head.get(1, ""), head.get(2, "")
        fields = _DELETE_OPTIONS if identity[1] == "DeleteOptions" else _KINDS.get(identity)
        if fields is None:
            cause = (
                f"a {identity[1]} in protobuf is not supported by the embedded API: use kubectl apply or kubectl"
            )
            raise ApiError(415, f"{cause} create with a file (-f)")
        return {"apiVersion": identity[0], "kind": identity[1], **_message(envelope.get(2, b""), fields)}
    except (IndexError, KeyError, UnicodeDecodeError, AttributeError) as error:
        raise ApiError(400, "the body of the request is malformed protobuf") from error


def _message(data: bytes, fields: Message) -> Json:
    result: Json = {}
    for number, raw in _fields(data):
        field = fields.get(number)
        if field is None:
            continue
        value = _value(raw, field)
        if field.type in ("map", "bytes map"):
            result.setdefault(field.name, {}).update(value)
        elif field.repeated:
            result.setdefault(field.name, []).append(value)
        elif value not in ("", {}):
            result[field.name] = value
    return result


def _value(raw: Any, field: Field) -> Any:
    match field.type:
        case dict():
            return _message(raw, field.type)
        case "int":
            return raw
        case "bool":
            return bool(raw)
        case "map":
            entry = dict(_fields(raw))
            return {entry.get(1, b"").decode(): entry.get(2, b"").decode()}
        case "bytes map":
            entry = dict(_fields(raw))
            return {entry.get(1, b"").decode(): base64.b64encode(entry.get(2, b"")).decode()}
    return raw.decode()


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values: integers, or bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        match tag & 7:
            case 0:
                value, position = _varint(data, position)
                yield tag >> 3, value
            case 2:
                length, position = _varint(data, position)
                yield tag >> 3, data[position : position + length]
                position += length
            case 1:
                position += 8
            case 5:
                position += 4
            case _:
                raise IndexError(position)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[position]
        result |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return result, position
        shift += 7
