"""What all Kubernetes objects share, and how a type is addressed on the API server.

Our types are views: they hold the fields we use and nothing else, because a cache of whole objects costs
twenty times the memory and most of the garbage collector's time. A view must therefore never be written
back as it is; writes are patches (`kube.patch`), so that fields we don't know survive.
"""

from dataclasses import dataclass
from typing import Annotated, Generic, Protocol, TypeVar

from msgspec import Meta, Struct, field


class View(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of every API type: immutable, camelCase on the wire, defaults left out."""


V = TypeVar("V")


def shown(value: V) -> V:
    """A default that is written all the same, because people should see it and columns print it."""
    return field(default_factory=lambda: value)


class OwnerReference(View, frozen=True, gc=False):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(View, frozen=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class AnnotatedMeta(ObjectMeta, frozen=True):
    """For the few objects whose annotations mean something to us; on a Pod they are dead weight."""

    annotations: dict[str, str] = {}


class Object(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """One kind of object: where it lives on the server, and the view it is read into."""

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


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names an object of a known kind. Names come back to life; where that matters, compare UIDs too."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(obj: Object) -> Key:
    return Key(obj.metadata.namespace, obj.metadata.name)


def is_deleting(obj: Object) -> bool:
    return bool(obj.metadata.deletion_timestamp)


class Condition(View, frozen=True, gc=False):
    type: Annotated[str, Meta(description="What the condition is about.", min_length=1, max_length=316)]
    status: Annotated[str, Meta(extra_json_schema={"enum": ["True", "False", "Unknown"]})]
    reason: Annotated[str, Meta(description="One CamelCase word for programs.", min_length=1, max_length=1024)]
    last_transition_time: Annotated[
        str,
        Meta(description="When the status last changed.", extra_json_schema={"format": "date-time"}),
    ]
    message: Annotated[str, Meta(description="One sentence for people.", max_length=32768)] = ""
    observed_generation: Annotated[int, Meta(ge=0)] = 0
