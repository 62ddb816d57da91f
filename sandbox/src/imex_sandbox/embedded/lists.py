"""How lists of built-in types are merged: by the keys of their entries, as a set, or not at all.

A strategic merge patch and server-side apply have rules of their own, in Kubernetes' types as `patchMergeKey` and
`listType`. Both are by name of the field here, for the kinds that the API serves. A list that is not named is
replaced as a whole. The lists of custom resources are described by their schema (`schemas`).
"""

from collections.abc import Callable
from typing import Any

Keys = tuple[str, ...]
SET: Keys = ()
"""A list of values, each at most once."""

ListKeys = Callable[[tuple[str, ...]], Keys | None]
"""By the path of a list, with elements as in `fieldsV1`: the keys of its entries; None if it is one value."""

_BY_NAME = (
    "containers",
    "initContainers",
    "ephemeralContainers",
    "volumes",
    "env",
    "imagePullSecrets",
    "secrets",
    "resourceClaims",
    "resourceClaimStatuses",
    "schedulingGates",
)
_COMMON: dict[str, Keys] = {
    **dict.fromkeys(_BY_NAME, ("name",)),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "conditions": ("type",),
    "addresses": ("type",),
    "ownerReferences": ("uid",),
    "hostAliases": ("ip",),
    "podIPs": ("ip",),
    "finalizers": SET,
}
_STRATEGIC: dict[str, Keys] = {**_COMMON, "topologySpreadConstraints": ("topologyKey",), "hostIPs": ("ip",)}
_APPLIED: dict[str, Keys] = {
    **_COMMON,
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "claims": ("name",),
    "matchConditions": ("name",),
    "variables": ("name",),
    "devices": ("driver", "device", "pool"),
    "reservedFor": ("uid",),
}
_PATHS_OF_DEVICES = ("f:status", "f:devices")
"""Other lists of this name, in the spec of a ResourceSlice, are replaced as a whole."""


def strategic_key(path: tuple[str, ...]) -> Keys | None:
    """By the names on the way to the list."""
    if path and path[-1] == "ports":
        return ("containerPort",) if "containers" in path or "initContainers" in path else ("port",)
    return _STRATEGIC.get(path[-1]) if path else None


def applied_keys(path: tuple[str, ...]) -> Keys | None:
    name = path[-1].removeprefix("f:")
    if name == "ports":
        in_container = any(part in ("f:containers", "f:initContainers") for part in path)
        return ("containerPort", "protocol") if in_container else ("port", "protocol")
    if name == "devices" and path != _PATHS_OF_DEVICES:
        return None
    return _APPLIED.get(name)


def key_values(item: dict[str, Any], keys: Keys) -> dict[str, Any]:
    """Of an entry; `protocol` is the one key with a default."""
    return {key: item.get(key, "TCP" if key == "protocol" else None) for key in keys}
