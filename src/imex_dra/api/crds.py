"""The CustomResourceDefinitions: schemas from the API types, columns of kubectl get from a table."""

from typing import Any

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import Resource
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS
from imex_dra.api.schema import schema_of

Column = tuple[str, str, int]
"""Heading, JSONPath, priority (1: only with -o wide). A column shows a single field; counts therefore have fields
of their own in `status.summary`.
"""

_AGE = ("Age", ".metadata.creationTimestamp", 0)

_COLUMNS: dict[Resource[Any], tuple[Column, ...]] = {
    COMPUTE_DOMAINS: (
        ("Status", ".status.summary.status", 0),
        ("Nodes", ".status.summary.nodes", 0),
        ("Partitions", ".status.summary.partitions", 0),
        ("Channel", ".status.summary.channels", 0),
        ("Message", ".status.summary.message", 1),
        _AGE,
    ),
    NVLINK_PARTITIONS: (
        ("Nodes", ".status.summary.nodes", 0),
        ("Channels-In-Use", ".status.summary.channels", 0),
        ("State", ".status.summary.state", 0),
        _AGE,
    ),
    NVLINK_NODES: (
        ("Ready", ".status.conditions[?(@.type=='Ready')].status", 0),
        ("Fabric", ".status.fabric.state", 0),
        ("Partition", ".status.partition", 0),
        ("Index", ".status.index", 0),
        ("IMEX", ".status.imexState", 0),
        ("Connected", ".status.conditions[?(@.type=='Connected')].status", 0),
        ("GPUs", ".status.gpuCount", 1),
        ("Product", ".status.product", 1),
        ("Driver", ".status.driverVersion", 1),
        ("Unreachable", ".status.unreachable", 1),
        ("Message", ".status.conditions[?(@.type=='Ready')].message", 1),
        _AGE,
    ),
}

_SHORT_NAMES = {COMPUTE_DOMAINS: ["cd"], NVLINK_PARTITIONS: ["nvlp"], NVLINK_NODES: ["nvln"]}


def definitions() -> dict[str, dict[str, Any]]:
    """By file name."""
    return {f"{r.group}_{r.plural}.yaml": _definition(r, columns) for r, columns in _COLUMNS.items()}


def _definition(resource: Resource[Any], columns: tuple[Column, ...]) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": _names(resource),
            "versions": [_version(resource, columns)],
        },
    }


def _names(resource: Resource[Any]) -> dict[str, Any]:
    return {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
        "shortNames": _SHORT_NAMES[resource],
    }


def _version(resource: Resource[Any], columns: tuple[Column, ...]) -> dict[str, Any]:
    schema = schema_of(resource.type)
    schema["properties"] = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}} | schema["properties"]
    return {
        "name": resource.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(*column) for column in columns],
        "schema": {"openAPIV3Schema": schema},
    }


def _column(heading: str, path: str, priority: int) -> dict[str, Any]:
    kind = "date" if heading == "Age" else "integer" if heading == "Index" else "string"
    column = {"name": heading, "type": kind, "jsonPath": path}
    return column | ({"priority": priority} if priority else {})
