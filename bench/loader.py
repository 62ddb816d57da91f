"""Loads the objects of a fleet into a control plane.

Through the API, ten thousand nodes take over 60,000 requests, because a status needs a second one, and the UIDs of
some objects are part of others. So they are written to etcd, as the API server itself would store them.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from bench.fleet import Fleet
from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import Object, Resource
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS
from imex_dra.api.views import NAMESPACES, NODES, RESOURCE_CLAIMS
from imex_dra.kube.client import encode
from imex_sandbox.kubernetes.controlplane import ControlPlane

_CREATED = "2026-01-01T00:00:00Z"


def load(control_plane: ControlPlane, fleet: Fleet) -> int:
    """Returns the number of objects."""
    values = dict(chain.from_iterable(_stored(resource, objects) for resource, objects in contents(fleet)))
    control_plane.store(values)
    return len(values)


def contents(fleet: Fleet) -> tuple[tuple[Resource[Any], tuple[Object, ...]], ...]:
    """By kind. Nodes come before what refers to them."""
    return (
        (NAMESPACES, fleet.namespaces),
        (NODES, fleet.nodes),
        (NVLINK_NODES, fleet.nvlink_nodes),
        (NVLINK_PARTITIONS, fleet.partitions),
        (COMPUTE_DOMAINS, fleet.domains),
        (RESOURCE_CLAIMS, fleet.claims),
    )


def _stored(resource: Resource[Any], objects: tuple[Object, ...]) -> Iterator[tuple[str, bytes]]:
    prefix = _prefix(resource)
    for obj in objects:
        body = msgspec.json.decode(encode(resource, obj))
        body["metadata"]["creationTimestamp"] = _CREATED
        namespace = f"{obj.metadata.namespace}/" if resource.namespaced else ""
        yield f"{prefix}/{namespace}{obj.metadata.name}", msgspec.json.encode(body)


def _prefix(resource: Resource[Any]) -> str:
    """Custom resources are stored below their group, and Nodes below their first name."""
    if resource is NODES:
        return "/registry/minions"
    if resource.group in ("", "resource.k8s.io"):
        return f"/registry/{resource.plural}"
    return f"/registry/{resource.group}/{resource.plural}"
