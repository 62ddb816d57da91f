"""Keeps the node's slice equal to what the node can serve.

The kubelet deletes slices at its start and when a plugin is gone for a while; a watch on our own shows it, and
the slice is made again. A slice that is there when we start is one that another instance of us offered: it is
withdrawn only as an offer of our own would be.
"""

import asyncio
from contextlib import suppress
from typing import NoReturn

import structlog
from msgspec import structs

from imex_dra.api.meta import Key, OwnerReference
from imex_dra.api.names import DRIVER
from imex_dra.api.views import NODES, RESOURCE_SLICES, ResourceSlice
from imex_dra.base.clock import Clock
from imex_dra.base.errors import AlreadyExists, ImexError, NotFound
from imex_dra.base.waiting import first_of
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.patch import patch_changes
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.node.readiness import Knowledge, obstacle
from imex_dra.node.seats import Offer, Seating, next_seating, seats_of, seats_slice
from imex_dra.node.situation import Situation

log = structlog.get_logger()


class SlicePublisher:
    def __init__(self, client: Client, situation: Situation, clock: Clock) -> None:
        self._client = client
        self._situation = situation
        self._clock = clock
        self._backoff = Backoff(0.2, 10.0)
        self._seating = Seating()
        self._touched = asyncio.Event()
        self._store: Store[ResourceSlice] = Store()
        self._store.subscribe(lambda old, new: self._touched.set())
        node = situation.known.node
        self._reflector = Reflector(
            client,
            RESOURCE_SLICES,
            self._store,
            selection=Selection(fields=f"spec.nodeName={node},spec.driver={DRIVER}"),
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            await self._reflector.synced.wait()
            if len(self._store):
                self._seating = Seating(Offer.OFFERED)
            group.create_task(self._publish())

    async def _publish(self) -> NoReturn:
        failures = 0
        while True:
            changed, known = self._situation.changed, self._situation.known
            self._touched.clear()
            self._seating, again = next_seating(self._seating, known, self._clock.monotonic())
            try:
                await self._reconcile(known)
                failures = 0
            except ImexError as error:
                failures += 1
                again = self._backoff.delay(failures)
                log.warning("the node's slice can't be written", error=str(error), retry_in=again)
            await first_of(changed, self._touched, timeout=again)

    async def _reconcile(self, known: Knowledge) -> None:
        mine = self._store.values()
        if not self._seating.offered:
            for live in mine:
                await self._delete(live)
        elif obstacle(known) is not None:
            return  # in doubt: what was offered stays as it was, clique and all
        elif not mine:
            await self._create(known)
        else:
            await self._update(mine[0], known)

    async def _create(self, known: Knowledge) -> None:
        node = await self._client.get(NODES, Key("", known.node))
        owner = OwnerReference("v1", "Node", known.node, node.metadata.uid)
        try:
            self._store.upsert(await self._client.create(RESOURCE_SLICES, seats_slice(known, owner)))
        except AlreadyExists:
            log.info("the slice is there already; the watch will show it")

    async def _update(self, live: ResourceSlice, known: Knowledge) -> None:
        devices = seats_of(known)
        if live.spec.devices == devices:
            return
        pool = structs.replace(live.spec.pool, generation=live.spec.pool.generation + 1)
        spec = structs.replace(live.spec, devices=devices, pool=pool)
        after = structs.replace(live, spec=spec)
        self._store.upsert(await patch_changes(self._client, RESOURCE_SLICES, live, after))

    async def _delete(self, live: ResourceSlice) -> None:
        with suppress(NotFound):
            await self._client.delete(RESOURCE_SLICES, live)
        self._store.remove(live)
