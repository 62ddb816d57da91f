"""The objects of a cluster at one moment, as plain values.

A kind that could not be read is missing, with a sentence that says why. Nothing may be concluded from its absence:
a rule asks `has` before it takes an empty list for an answer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import ObjectMeta, Resource, View
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS
from imex_dra.api.reasons import listed
from imex_dra.api.views import (
    DAEMON_SETS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from imex_dra.diagnose.shapes import malformed, object_name

Plain = dict[str, Any]


class DeviceClass(View, frozen=True):
    metadata: ObjectMeta


class Job(View, frozen=True):
    metadata: ObjectMeta


class ReplicaSet(View, frozen=True):
    metadata: ObjectMeta


class StatefulSet(View, frozen=True):
    metadata: ObjectMeta


DEVICE_CLASSES = Resource(DeviceClass, "resource.k8s.io", "v1", "deviceclasses", namespaced=False)
JOBS = Resource(Job, "batch", "v1", "jobs")
REPLICA_SETS = Resource(ReplicaSet, "apps", "v1", "replicasets")
STATEFUL_SETS = Resource(StatefulSet, "apps", "v1", "statefulsets")

KINDS: tuple[Resource[Any], ...] = (
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    COMPUTE_DOMAINS,
    NVLINK_PARTITIONS,
    NVLINK_NODES,
    NODES,
    RESOURCE_SLICES,
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    DAEMON_SETS,
    LEASES,
    JOBS,
    REPLICA_SETS,
    STATEFUL_SETS,
)
"""Never Secrets or ConfigMaps. Jobs, ReplicaSets and StatefulSets only tell which workload a pod belongs to."""

BY_PLURAL = {resource.plural: resource for resource in KINDS}
_BY_KIND = {(resource.kind, resource.group): resource.plural for resource in KINDS}
_EVENT_KINDS = {("Event", ""), ("Event", "events.k8s.io")}


class Missing(NamedTuple):
    """A part that the snapshot does not have."""

    plural: str
    why: str
    not_served: bool = False
    """The API server does not know the kind: it is not installed."""
    namespace: str = ""
    """The only namespace whose objects are there; empty if none are."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    objects: Mapping[str, tuple[Plain, ...]] = field(default_factory=dict)
    """By plural name of the kind."""
    missing: tuple[Missing, ...] = ()
    taken_at: str = ""
    """RFC 3339; empty if it is not known, as with files."""
    version: str = ""
    """Of the API server, such as v1.36.4; empty if it is not known."""

    def has(self, plural: str, namespace: str = "") -> bool:
        """Whether all objects of the kind were read, or all of the namespace."""
        return not self.why_missing(plural, namespace)

    def why_missing(self, plural: str, namespace: str = "") -> str:
        """Why not all objects of the kind, or of the namespace, are there; empty if they are."""
        for one in self.missing:
            if one.plural == plural and not (namespace == one.namespace != ""):
                return one.why
        return "" if plural in self.objects else f"{plural} were not collected"

    def well_formed(self) -> "Snapshot":
        """Without objects that cannot be decoded: their values have types that no API server would return, or a
        newer driver wrote them. They are named, and their kind counts as not read."""
        objects, missing = dict(self.objects), list(self.missing)
        for plural, found in self.objects.items():
            wrong = {id(obj): why for obj in found if (why := malformed(BY_PLURAL[plural], obj))}
            if wrong:
                objects[plural] = tuple(obj for obj in found if id(obj) not in wrong)
                first, *others = (obj for obj in found if id(obj) in wrong)
                why = f"{len(wrong)} of {len(found)} {plural} cannot be read: {wrong[id(first)]}"
                why += f"; likewise {listed([object_name(obj) for obj in others])}" if others else ""
                missing.append(Missing(plural, why))
        return replace(self, objects=objects, missing=tuple(missing))

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is missing; what has the same cause is one sentence."""
        causes: dict[str, list[str]] = {}
        for one in self.missing:
            causes.setdefault(one.why.replace(one.plural, "\0", 1), []).append(one.plural)
        return tuple(cause.replace("\0", ", ".join(plurals)) for cause, plurals in causes.items())

    def of(self, plural: str) -> tuple[Plain, ...]:
        return self.objects.get(plural, ())


def plural_of(obj: Plain) -> str:
    """Empty for kinds that a snapshot does not have."""
    group, slash, _ = str(obj.get("apiVersion", "")).partition("/")
    kind = (str(obj.get("kind", "")), group if slash else "")
    return EVENTS.plural if kind in _EVENT_KINDS else _BY_KIND.get(kind, "")


def from_objects(objects: Iterable[Plain], *, complete: bool = False) -> Snapshot:
    """Of objects with apiVersion and kind. Kinds without an object are missing, unless the list is complete."""
    by_plural: dict[str, list[Plain]] = {}
    for obj in objects:
        if plural := plural_of(obj):
            by_plural.setdefault(plural, []).append(trimmed(obj))
    absent = [resource.plural for resource in KINDS if resource.plural not in by_plural]
    return Snapshot(
        {plural: tuple(found) for plural, found in by_plural.items()}
        | (dict.fromkeys(absent, ()) if complete else {}),
        () if complete else tuple(Missing(plural, f"the files contain no {plural}") for plural in absent),
    ).well_formed()


def trimmed(obj: Plain) -> Plain:
    """Without what tools wrote into the metadata: it is half of an object, and repeats the rest."""
    if not isinstance(obj.get("metadata"), dict):
        return obj  # malformed
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict):
        last_applied = "kubectl.kubernetes.io/last-applied-configuration"
        metadata["annotations"] = {key: value for key, value in annotations.items() if key != last_applied}
    return {**obj, "metadata": metadata}
