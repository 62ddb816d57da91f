"""Watches all that a picture is made of, and remembers which letter a ComputeDomain was shown with."""

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
from imex_dra.picture.observed import Observed, scene
from imex_dra.picture.scene import Scene

_PATIENCE = Backoff(0.2, 2.0)
"""A cluster that is looked at is often one that only starts."""


class Watching:
    def __init__(self) -> None:
        self.nodes: Store[Node] = Store()
        self.cards: Store[NVLinkNode] = Store()
        self.partitions: Store[NVLinkPartition] = Store()
        self.slices: Store[ResourceSlice] = Store()
        self.claims: Store[ResourceClaim] = Store()
        self.domains: Store[ComputeDomain] = Store()
        self.pods: Store[Pod] = Store()
        self._letters: dict[str, str] = {}
        self._changed = asyncio.Event()
        self.domains.subscribe(lambda old, new: self._name(new))
        stores: tuple[Store[Any], ...] = (
            self.nodes, self.cards, self.partitions, self.slices, self.claims, self.domains, self.pods
        )  # fmt: skip
        for store in stores:
            store.subscribe(lambda old, new: self._changed.set())

    async def run(self, client: Client) -> None:
        ours = Selection(fields=f"spec.driver={DRIVER}")
        async with asyncio.TaskGroup() as group:
            for reflector in (
                Reflector(client, NODES, self.nodes, backoff=_PATIENCE),
                Reflector(client, NVLINK_NODES, self.cards, backoff=_PATIENCE),
                Reflector(client, NVLINK_PARTITIONS, self.partitions, backoff=_PATIENCE),
                Reflector(client, RESOURCE_SLICES, self.slices, selection=ours, backoff=_PATIENCE),
                Reflector(client, RESOURCE_CLAIMS, self.claims, backoff=_PATIENCE),
                Reflector(client, COMPUTE_DOMAINS, self.domains, backoff=_PATIENCE),
                Reflector(client, PODS, self.pods, backoff=_PATIENCE),
            ):
                group.create_task(reflector.run())

    def observed(self) -> Observed:
        return Observed(
            self.nodes.values(),
            self.cards.values(),
            self.partitions.values(),
            self.slices.values(),
            self.claims.values(),
            self.domains.values(),
            self.pods.values(),
        )

    def scene(self) -> Scene:
        return scene(self.observed(), self._letters)

    async def until(self, condition: Callable[[Observed], bool], *, within: float) -> bool:
        """Whether it came true; looked at whenever something changed."""
        try:
            async with asyncio.timeout(within):
                while not condition(self.observed()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return condition(self.observed())
        return True

    def _name(self, domain: ComputeDomain | None) -> None:
        """In the order in which they were seen; letters are never given twice while there are others."""
        if domain is not None:
            letter = string.ascii_uppercase[len(self._letters) % 26]
            self._letters.setdefault(domain.metadata.uid, letter)
