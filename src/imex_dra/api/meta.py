"""What all API objects have in common: metadata, keys, conditions, resource paths.

API types are views: they hold only the fields that we use, because a cache of complete objects needs twenty
times the memory. A view must therefore never be written back as it is. Writes are patches (`kube.patch`), which
preserve fields that the view does not have.
"""

from dataclasses import dataclass
from typing import Annotated, Generic, Protocol, TypeVar

from msgspec import Meta, Struct, field


class View(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of every API type: immutable, camelCase in JSON, fields with their default value are omitted."""


V = TypeVar("V")


def shown(value: V) -> V:
    """A default that is written nevertheless, so that users see it in the object and in the columns of kubectl
    get.
    """
    return field(default_factory=lambda: value)


class OwnerReference(View, frozen=True, gc=False):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class ObjectMeta(View, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class AnnotatedMeta(ObjectMeta, frozen=True):
    """For the few kinds whose annotations we read. Pods have many and large annotations that we do not need."""

    annotations: dict[str, str] = {}


class Object(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """One kind of object: its path on the API server, and the view that it is decoded into."""

    type: type[T]
    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def kind(self) -> str:
        return self.type.__name__

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        return "/" + "/".join([*parts, *filter(None, (name, subresource))])


class Key(Struct, frozen=True, order=True, gc=False):
    """Identifies an object of a known kind. A recreated object has the same key and another UID.

    A Struct, because every look-up in a store makes, hashes and compares one, and stores keep one for each object.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(obj: Object) -> Key:
    return Key(obj.metadata.namespace, obj.metadata.name)


def is_deleting(obj: Object) -> bool:
    return bool(obj.metadata.deletion_timestamp)


OTHER_DRIVER = "OtherDriver"
"""Condition of NVLinkPartitions and NVLinkNodes: True while another driver of the same name is present, and ours
therefore does nothing. NVIDIA's driver does not know these kinds.
"""


class Condition(View, frozen=True, gc=False):
    type: Annotated[str, Meta(description="Type of the condition.", min_length=1, max_length=316)]
    status: Annotated[
        str,
        Meta(description="Whether the condition holds.", extra_json_schema={"enum": ["True", "False", "Unknown"]}),
    ]
    reason: Annotated[
        str,
        Meta(description="Cause of the last transition, as one CamelCase word.", min_length=1, max_length=1024),
    ]
    last_transition_time: Annotated[
        str,
        Meta(description="When the status last changed.", extra_json_schema={"format": "date-time"}),
    ]
    message: Annotated[str, Meta(description="Explanation in one sentence.", max_length=32768)] = ""
    observed_generation: Annotated[
        int, Meta(ge=0, description="metadata.generation that the condition was computed for.")
    ] = 0
