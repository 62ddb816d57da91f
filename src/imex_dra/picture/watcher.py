"""Watches all objects that a picture shows, and assigns a letter to each ComputeDomain."""

import asyncio
import string
from collections.abc import Callable
from typing import Any

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.names import DRIVER
from imex_dra.api.nvlinknode import NVLINK_NODES, NVLinkNode
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.api.views import (
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Node,
    Pod,
    ResourceClaim,
    ResourceSlice,
)
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.picture.model import ClusterModel
from imex_dra.picture.snapshot import Snapshot, build_model

_BACKOFF = Backoff(0.2, 2.0)
"""Short, because the cluster is often just starting."""


class ClusterWatcher:
    def __init__(self) -> None:
        self.nodes: Store[Node] = Store()
        self.nvlink_nodes: Store[NVLinkNode] = Store()
        self.partitions: Store[NVLinkPartition] = Store()
        self.slices: Store[ResourceSlice] = Store()
        self.claims: Store[ResourceClaim] = Store()
        self.domains: Store[ComputeDomain] = Store()
        self.pods: Store[Pod] = Store()
        self._letters: dict[str, str] = {}
        self._changed = asyncio.Event()
        self.domains.subscribe(lambda old, new: self._assign_letter(new))
        stores: tuple[Store[Any], ...] = (
            self.nodes, self.nvlink_nodes, self.partitions, self.slices, self.claims, self.domains, self.pods
        )  # fmt: skip
        for store in stores:
            store.subscribe(lambda old, new: self._changed.set())

    async def run(self, client: Client) -> None:
        our_slices = Selection(fields=f"spec.driver={DRIVER}")
        async with asyncio.TaskGroup() as group:
            for reflector in (
                Reflector(client, NODES, self.nodes, backoff=_BACKOFF),
                Reflector(client, NVLINK_NODES, self.nvlink_nodes, backoff=_BACKOFF),
                Reflector(client, NVLINK_PARTITIONS, self.partitions, backoff=_BACKOFF),
                Reflector(client, RESOURCE_SLICES, self.slices, selection=our_slices, backoff=_BACKOFF),
                Reflector(client, RESOURCE_CLAIMS, self.claims, backoff=_BACKOFF),
                Reflector(client, COMPUTE_DOMAINS, self.domains, backoff=_BACKOFF),
                Reflector(client, PODS, self.pods, backoff=_BACKOFF),
            ):
                group.create_task(reflector.run())

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.nodes.values(),
            self.nvlink_nodes.values(),
            self.partitions.values(),
            self.slices.values(),
            self.claims.values(),
            self.domains.values(),
            self.pods.values(),
        )

    def model(self) -> ClusterModel:
        return build_model(self.snapshot(), self._letters)

    async def until(self, condition: Callable[[Snapshot], bool], *, within: float) -> bool:
        """Whether the condition became true in time; it is evaluated at every change."""
        try:
            async with asyncio.timeout(within):
                while not condition(self.snapshot()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return condition(self.snapshot())
        return True

    def _assign_letter(self, domain: ComputeDomain | None) -> None:
        # In order of appearance. A letter is kept after its ComputeDomain is gone, so that it never changes
        # meaning within one run; after Z the letters repeat.
        if domain is not None:
            letter = string.ascii_uppercase[len(self._letters) % 26]
            self._letters.setdefault(domain.metadata.uid, letter)
