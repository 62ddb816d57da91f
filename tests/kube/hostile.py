"""JSON that a user can store in Kubernetes and that decoders refuse, and objects that contain it."""

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import Raw

STORED: dict[str, bytes] = {
    "a lone surrogate": rb'{"a":"\ud800"}',
    "a lone low surrogate": rb'{"a":"x\udc00y"}',
    "a surrogate in a key": rb'{"\ud800":1}',
    "a surrogate after a backslash": rb'{"a":"\\\ud83d"}',
    "arrays nested 1,500 deep": b'{"a":%s}' % (b"[" * 1500 + b"]" * 1500),
    "objects nested 900 deep": b'{"a":' * 900 + b"1" + b"}" * 900,
    "arrays nested as deep as their size allows": b'{"a":%s}' % (b"[" * 5000 + b"]" * 5000),
    "brackets in a string": rb'{"[[[{{{":"]]\"]}"}',
    "bytes that are not UTF-8": b'{"a":"\xff\xfe"}',
    "a key that occurs twice": b'{"a":1,"a":2}',
    "a NUL": rb'{"a":"\u0000"}',
    "ten kilobytes": b'{"a":"%s"}' % (b"x" * 10_000),
}
"""Parameters of an opaque configuration that the API server stores, and returns byte by byte."""

NOT_STORED: dict[str, bytes] = {
    "a number that is not finite": b'{"a":1e999}',
    "an integer of 400 digits": b'{"a":%s}' % (b"9" * 400),
    "a string": b'"text"',
}
"""Parameters that Kubernetes 1.36 does not store; another version may."""

DEEP_MANAGED_FIELDS = [
    {
        "manager": "hostile",
        "operation": "Update",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsV1": Raw(b'{"f:a":' * 1500 + b"{}" + b"}" * 1500),
    }
]
"""The API server stores this, too, in the metadata of any object."""


def claim_spec(driver: str, *parameters: bytes) -> bytes:
    configs = b",".join(
        b'{"opaque":{"driver":"%s","parameters":%s}}' % (driver.encode(), value) for value in parameters
    )
    request = b'{"name":"channel","exactly":{"deviceClassName":"compute-domain-default-channel.nvidia.com"}}'
    return b'{"devices":{"requests":[%s],"config":[%s]}}' % (request, configs)


def claim(name: str, driver: str, *parameters: bytes, **metadata: Any) -> bytes:
    """A ResourceClaim, as JSON."""
    return _object(b"ResourceClaim", {"name": name, **metadata}, claim_spec(driver, *parameters))


def template(name: str, driver: str, *parameters: bytes) -> bytes:
    """A ResourceClaimTemplate, as JSON."""
    return _object(b"ResourceClaimTemplate", {"name": name}, b'{"spec":%s}' % claim_spec(driver, *parameters))


def _object(kind: bytes, metadata: dict[str, Any], spec: bytes) -> bytes:
    encoded = msgspec.json.encode(metadata)
    return b'{"kind":"%s","apiVersion":"resource.k8s.io/v1","metadata":%s,"spec":%s}' % (kind, encoded, spec)


_ESCAPES = st.sampled_from(["\\ud800", "\\udfff", "\\ud83d\\ude00", "\\\\", '\\"', "\\u0041", "\\n"])
_STRINGS = st.lists(_ESCAPES | st.text("ab[]{}é", max_size=3), max_size=5).map(lambda parts: f'"{"".join(parts)}"')
_NUMBERS = st.sampled_from(["0", "-1", "1e999", "9" * 400, "9223372036854775808", "1.5"])


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arrays = st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
    objects = st.lists(st.tuples(_STRINGS, inner), max_size=3).map(
        lambda items: "{" + ",".join(f"{key}:{value}" for key, value in items) + "}"
    )
    deep = st.tuples(inner, st.integers(50, 3000)).map(lambda pair: "[" * pair[1] + pair[0] + "]" * pair[1])
    return arrays | objects | deep


HOSTILE_JSON = st.recursive(_STRINGS | _NUMBERS | st.sampled_from(["null", "true"]), _nested, max_leaves=8).map(
    str.encode
)
"""Valid JSON with surrogates, depth and odd numbers in any place."""
