"""Allocation of devices to ResourceClaims, with CEL selectors, as the scheduler does it for one node at a time.

Not supported, and said so: subrequests (`firstAvailable`), constraints, admin access, shared counters, and devices
for several claims.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from imex_sandbox.embedded.labels import node_selector
from imex_sandbox.embedded.statuses import Json

DELETE_PROTECTION = "resource.kubernetes.io/delete-protection"


_DOMAIN = re.compile(r"""\[\s*["']([^"']+)["']\s*\]""")
"""The literal keys in an expression."""


class Unschedulable(Exception):
    """No node will do, and this is why."""


class Device(NamedTuple):
    driver: str
    pool: str
    name: str
    document: Json

    @property
    def id(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.name


def devices_for(node: Json, slices: Iterable[Json]) -> list[Device]:
    """The devices that a pod on this node can use, in the order of slices and devices."""
    found = [one["spec"] for one in slices if _is_for(one["spec"], node)]
    newest: dict[tuple[str, str], int] = {}
    for spec in found:
        pool = spec["driver"], spec["pool"]["name"]
        newest[pool] = max(newest.get(pool, 0), spec["pool"]["generation"])
    return [
        Device(spec["driver"], spec["pool"]["name"], device["name"], device)
        for spec in found
        if spec["pool"]["generation"] == newest[spec["driver"], spec["pool"]["name"]]
        for device in spec.get("devices") or ()
    ]


def _is_for(spec: Json, node: Json) -> bool:
    if spec.get("allNodes"):
        return True
    if selector := spec.get("nodeSelector"):
        return node_selector(selector, node)
    return bool(spec.get("nodeName") == node["metadata"]["name"])


def in_use(claims: Iterable[Json]) -> set[tuple[str, str, str]]:
    return {
        (result["driver"], result["pool"], result["device"])
        for claim in claims
        for result in _results((claim.get("status") or {}).get("allocation") or {})
    }


def _results(allocation: Json) -> list[Json]:
    return (allocation.get("devices") or {}).get("results") or []


def fits(allocation: Json, node: Json) -> bool:
    """Whether a claim that is allocated already can be used on this node."""
    selector = allocation.get("nodeSelector")
    return selector is None or node_selector(selector, node)


def allocate(
    claim: Json, node: Json, devices: list[Device], used: set[tuple[str, str, str]], classes: dict[str, Json]
) -> Json | None:
    """The allocation; None if this node does not have the devices. `used` grows by them."""
    spec = (claim["spec"].get("devices")) or {}
    if spec.get("constraints"):
        raise Unschedulable("constraints of ResourceClaims are not supported by the embedded scheduler")
    results, taken = [], set(used)
    for request in spec.get("requests") or ():
        chosen = _choose(request, devices, taken, classes)
        if chosen is None:
            return None
        taken |= {device.id for device in chosen}
        results += [
            {"request": request["name"], "driver": one.driver, "pool": one.pool, "device": one.name}
            for one in chosen
        ]
    used |= taken
    term = {"key": "metadata.name", "operator": "In", "values": [node["metadata"]["name"]]}
    allocation: Json = {"devices": {"results": results}}
    if config := list(_configs(spec, classes)):
        allocation["devices"]["config"] = config
    return {**allocation, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [term]}]}}


def _configs(spec: Json, classes: dict[str, Json]) -> Iterator[Json]:
    for request in spec.get("requests") or ():
        for config in classes[request["exactly"]["deviceClassName"]]["spec"].get("config") or ():
            yield {"source": "FromClass", "requests": [request["name"]], **config}
    for config in spec.get("config") or ():
        yield {"source": "FromClaim", **config}


def _choose(
    request: Json, devices: list[Device], taken: set[tuple[str, str, str]], classes: dict[str, Json]
) -> list[Device] | None:
    exactly = request.get("exactly")
    if exactly is None:
        raise Unschedulable(
            f"request {request['name']}: firstAvailable is not supported by the embedded scheduler"
        )
    if exactly.get("adminAccess"):
        raise Unschedulable(f"request {request['name']}: adminAccess is not supported by the embedded scheduler")
    name = exactly["deviceClassName"]
    if name not in classes:
        raise Unschedulable(f"request {request['name']}: device class {name} does not exist")
    selectors = [*(classes[name]["spec"].get("selectors") or ()), *(exactly.get("selectors") or ())]
    expressions = [one["cel"]["expression"] for one in selectors]
    matching = [one for one in devices if all(selects(expression, one) for expression in expressions)]
    if exactly["allocationMode"] == "All":
        return matching if matching and all(one.id not in taken for one in matching) else None
    free = [one for one in matching if one.id not in taken and _is_supported(one)]
    return free[: exactly["count"]] if len(free) >= exactly["count"] else None


def _is_supported(device: Device) -> bool:
    if device.document.get("consumesCounters") or device.document.get("allowMultipleAllocations"):
        raise Unschedulable(
            f"device {device.name} of pool {device.pool} has shared counters or can be allocated several times,"
            " which the embedded scheduler does not support"
        )
    return True


def selects(expression: str, device: Device) -> bool:
    """An error, such as an attribute that the device does not have, ends the scheduling of the pod."""
    program, error_type = _program(expression)
    result = program.eval(data={"device": _view(device, _DOMAIN.findall(expression))})
    if result.type() == error_type:
        raise Unschedulable(
            f"device {device.name} of pool {device.pool}: selector {expression.strip()!r}: {result}"
        )
    return result.value() is True


@lru_cache(256)
def _program(expression: str) -> tuple[Any, Any]:
    from cel_expr_python import cel

    environment = cel.NewEnv(variables={"device": cel.Type.DYN})
    try:
        return environment.compile(expression), cel.Type.ERROR
    except RuntimeError as error:
        reason = re.sub(r"\s+", " ", str(error))
        raise Unschedulable(f"the selector {expression.strip()!r} is not supported here: {reason}") from error


def _view(device: Device, domains: Iterable[str]) -> Json:
    """Attributes and capacities by domain: `device.attributes["example.com"].type`.

    Kubernetes gives an empty map for every domain that a device does not have. Here only those of the expression
    (`domains`) are there, as the map of the CEL library has no default.
    """
    view: Json = {"driver": device.driver, "attributes": {}, "capacity": {}}
    for name, value in (device.document.get("attributes") or {}).items():
        _put(view["attributes"], name, device.driver, next(iter(value.values())))
    for name, value in (device.document.get("capacity") or {}).items():
        _put(view["capacity"], name, device.driver, value["value"])
    for domain in (device.driver, *domains):
        view["attributes"].setdefault(domain, {})
        view["capacity"].setdefault(domain, {})
    return view


def _put(domains: Json, name: str, driver: str, value: Any) -> None:
    domain, _, identifier = name.rpartition("/")
    domains.setdefault(domain or driver, {})[identifier] = value
