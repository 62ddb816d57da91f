"""The types of what rules read as plain values.

An API server promises them; a file that somebody wrote does not, and neither does a newer driver in its own kinds.
An object with other types is left out of a snapshot and named, so that no rule checks types and none can crash on
them.
"""

from typing import Any

import msgspec
from msgspec import Struct

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import Resource
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS
from imex_dra.api.views import (
    DAEMON_SETS,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from imex_dra.base.errors import Undecodable
from imex_dra.kube.decoding import ObjectDecoder

_Plain = dict[str, Any]


class _Shape(Struct, rename="camel"):
    pass


class _Metadata(_Shape):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Object(_Shape):
    metadata: _Metadata


class _Expression(_Shape):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class _NodeTerm(_Shape):
    match_expressions: list[_Expression] | None = None
    match_fields: list[_Expression] | None = None


class _NodeTerms(_Shape):
    node_selector_terms: list[_NodeTerm] | None = None


class _Selector(_Shape):
    match_labels: dict[str, str] | None = None
    match_expressions: list[_Expression] | None = None


class _PodTerm(_Shape):
    topology_key: str = ""
    namespaces: list[str] | None = None
    label_selector: _Selector | None = None


class _NodeAffinity(_Shape):
    required: _NodeTerms | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class _PodAffinity(_Shape):
    required: list[_PodTerm] | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class _Affinity(_Shape):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Resources(_Shape):
    limits: _Plain | None = None
    requests: _Plain | None = None


class _Container(_Shape):
    resources: _Resources | None = None
    command: list[Any] | None = None
    args: list[Any] | None = None


class _PodSpec(_Shape):
    node_selector: dict[str, str] | None = None
    tolerations: list[_Plain] | None = None
    affinity: _Affinity | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Pod(_Object):
    spec: _PodSpec | None = None


class _Taint(_Shape):
    key: str = ""
    value: str | None = None
    effect: str = ""


class _NodeSpec(_Shape):
    unschedulable: bool = False
    taints: list[_Taint] | None = None


class _NodeStatus(_Shape):
    allocatable: _Plain | None = None
    node_info: _Plain | None = None
    conditions: list[_Plain] | None = None


class _Node(_Object):
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class _Template(_Shape):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


class _DaemonSetSpec(_Shape):
    update_strategy: _Plain | None = None
    template: _Template = msgspec.field(default_factory=_Template)


class _DaemonSet(_Object):
    spec: _DaemonSetSpec = msgspec.field(default_factory=_DaemonSetSpec)


class _Lease(_Object):
    spec: _Plain = msgspec.field(default_factory=dict)


class _Series(_Shape):
    last_observed_time: str | None = None


class _Event(_Object):
    series: _Series | None = None
    deprecated_last_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    regarding: dict[str, str] | None = None
    involved_object: dict[str, str] | None = None


_SHAPES: dict[str, type[_Object]] = {
    PODS.plural: _Pod,
    NODES.plural: _Node,
    DAEMON_SETS.plural: _DaemonSet,
    LEASES.plural: _Lease,
    EVENTS.plural: _Event,
}
_DECODERS = {
    resource.plural: ObjectDecoder(resource)
    for resource in (
        PODS,
        RESOURCE_CLAIMS,
        RESOURCE_CLAIM_TEMPLATES,
        COMPUTE_DOMAINS,
        NVLINK_PARTITIONS,
        NVLINK_NODES,
        NODES,
        RESOURCE_SLICES,
    )
}
"""Of kinds that `Cluster` decodes."""


def malformed(resource: Resource[Any], obj: _Plain) -> str:
    """What is wrong with the types of the object; empty if nothing is."""
    try:
        msgspec.convert(obj, _SHAPES.get(resource.plural, _Object))
        if resource.plural in _DECODERS:
            _DECODERS[resource.plural].decode(msgspec.json.encode(obj))
    except Undecodable as error:
        return str(error)
    except ValueError as error:
        return f"{resource.kind} {object_name(obj)}: {error}"
    return ""


def object_name(obj: _Plain) -> str:
    metadata = obj.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else "without metadata"
