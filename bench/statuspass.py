"""A full status pass in memory: every NVLinkPartition and every ComputeDomain of a large cluster is reconciled."""

from typing import Any

import msgspec

from imex_dra.api.meta import Key, Resource, T, key_of
from imex_dra.base.errors import NotFound
from imex_dra.kube.client import Client, encode


class MemoryClient(Client):
    """Answers writes as an API server does, and counts them. It holds only the objects that it was given."""

    def __init__(self) -> None:
        self.field_manager = "imex-bench"
        self.requests = 0
        self._objects: dict[tuple[str, Key], dict[str, Any]] = {}
        self._version = 1_000_000

    def add(self, resource: Resource[T], obj: T) -> T:
        stored = msgspec.json.decode(encode(resource, obj))
        stored["metadata"]["resourceVersion"] = self._next_version()
        stored["metadata"].setdefault("uid", f"uid-{self._version}")
        self._objects[resource.plural, key_of(obj)] = stored
        return msgspec.convert(stored, resource.type) if False else self._view(resource, stored)

    async def get_raw(self, resource: Resource[T], key: Key) -> bytes:
        self.requests += 1
        return msgspec.json.encode(self._stored(resource, key))

    async def create(self, resource: Resource[T], obj: T) -> T:
        self.requests += 1
        return self.add(resource, obj)

    async def patch(self, resource: Resource[T], key: Key, patch: dict[str, Any], **options: Any) -> T:
        self.requests += 1
        stored = self._stored(resource, key)
        _merge(stored, msgspec.json.decode(msgspec.json.encode(patch)))
        stored["metadata"]["resourceVersion"] = self._next_version()
        return self._view(resource, stored)

    def _stored(self, resource: Resource[T], key: Key) -> dict[str, Any]:
        try:
            return self._objects[resource.plural, key]
        except KeyError as error:
            raise NotFound(f"{resource.kind} {key}") from error

    def _view(self, resource: Resource[T], stored: dict[str, Any]) -> T:
        return msgspec.json.decode(msgspec.json.encode(stored), type=resource.type)

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)


def _merge(stored: dict[str, Any], patch: dict[str, Any]) -> None:
    for name, value in patch.items():
        if value is None:
            stored.pop(name, None)
        elif isinstance(value, dict) and isinstance(stored.get(name), dict):
            _merge(stored[name], value)
        else:
            stored[name] = value
