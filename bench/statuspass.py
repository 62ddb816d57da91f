"""A full status pass in memory: every NVLinkPartition and every ComputeDomain of a large cluster is reconciled."""

import time
from collections.abc import Iterable
from typing import Any

import jsonpatch
import msgspec

from bench.fleet import Fleet
from bench.loader import contents
from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import Key, Object, Resource, T, key_of
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS
from imex_dra.api.views import NAMESPACES, NODES, RESOURCE_CLAIMS
from imex_dra.base.clock import Clock
from imex_dra.base.errors import NotFound
from imex_dra.controller.caches import Caches
from imex_dra.controller.computedomains import ComputeDomainReconciler
from imex_dra.controller.nvlinkpartitions import NVLinkPartitionReconciler
from imex_dra.kube.client import Client, encode
from imex_dra.kube.events import EventRecorder
from imex_dra.kube.store import Store


class MemoryClient(Client):
    """Answers writes as an API server does, and counts them. It knows only the objects that it was given."""

    def __init__(self) -> None:
        self.field_manager = "imex-bench"
        self.writes = 0
        self._objects: dict[tuple[str, Key], dict[str, Any]] = {}
        self._version = 0

    def add(self, resource: Resource[T], obj: T) -> T:
        stored = msgspec.json.decode(encode(resource, obj))
        stored["metadata"].setdefault("uid", f"uid-{self._version}")
        self._objects[resource.plural, key_of(obj)] = stored
        return self._versioned(resource, stored)

    async def get_raw(self, resource: Resource[T], key: Key) -> bytes:
        return msgspec.json.encode(self._stored(resource, key))

    async def create(self, resource: Resource[T], obj: T) -> T:
        self.writes += 1
        return self.add(resource, obj)

    async def patch(self, resource: Resource[T], key: Key, patch: Any, **options: Any) -> T:
        self.writes += 1
        return self._versioned(resource, jsonpatch.apply_patch(self._stored(resource, key), patch, in_place=True))

    def _stored(self, resource: Resource[Any], key: Key) -> dict[str, Any]:
        try:
            return self._objects[resource.plural, key]
        except KeyError as error:
            raise NotFound(f"{resource.kind} {key}") from error

    def _versioned(self, resource: Resource[T], stored: dict[str, Any]) -> T:
        self._version += 1
        stored["metadata"]["resourceVersion"] = str(self._version)
        return msgspec.json.decode(msgspec.json.encode(stored), type=resource.type)


class StatusPass:
    """The reconcilers of a controller whose caches contain a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.client, self.caches = MemoryClient(), Caches()
        for resource, objects in contents(fleet):
            _store(self.caches, resource).replace([self.client.add(resource, obj) for obj in objects])
        events = EventRecorder(self.client, "bench", Clock())
        self._partitions = NVLinkPartitionReconciler(self.client, self.caches, events, Clock())
        self._domains = ComputeDomainReconciler(self.client, self.caches, events, Clock(), start_period=0)

    async def run(self) -> float:
        """Seconds of CPU time."""
        began = time.process_time()
        for partition in self.caches.partitions.values():
            await self._partitions.reconcile(PartitionId(partition.metadata.name))
        for domain in self.caches.compute_domains.values():
            await self._domains.reconcile(key_of(domain))
        return time.process_time() - began

    def domains(self) -> Iterable[ComputeDomain]:
        return self.caches.compute_domains.values()


def _store(caches: Caches, resource: Resource[Any]) -> Store[Any]:
    stores: dict[str, Store[Any]] = {
        NAMESPACES.plural: caches.namespaces,
        NODES.plural: caches.nodes,
        NVLINK_NODES.plural: caches.nvlink_nodes,
        NVLINK_PARTITIONS.plural: caches.partitions,
        COMPUTE_DOMAINS.plural: caches.compute_domains,
        RESOURCE_CLAIMS.plural: caches.claims,
    }
    return stores[resource.plural]


def decode_all(fleet: Fleet) -> float:
    """Seconds of CPU time to decode the objects of the fleet, into the views that the caches keep."""
    encoded: list[tuple[Resource[Object], list[bytes]]] = [
        (resource, [encode(resource, obj) for obj in objects]) for resource, objects in contents(fleet)
    ]
    began = time.process_time()
    for resource, texts in encoded:
        decoder = msgspec.json.Decoder(resource.type)
        for text in texts:
            decoder.decode(text)
    return time.process_time() - began
