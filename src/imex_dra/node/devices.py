"""Publishes the node's channel devices: a ResourceSlice with as many devices as the node can hold claims.

A device stands for one claim, not for a channel number: all are equal, and the controller assigns the channel.
Removing devices harms no allocated claim, but every change of a slice makes the scheduler reconsider all pending
pods that use DRA. So a short interruption of the IMEX daemon must not change the slice.
"""

import asyncio
from contextlib import suppress
from enum import StrEnum
from typing import NoReturn

import structlog
from msgspec import Struct, structs

from imex_dra.api.meta import Key, ObjectMeta, OwnerReference
from imex_dra.api.names import DRIVER, MANAGED_BY, MANAGED_BY_LABEL
from imex_dra.api.nvlinknode import FabricState
from imex_dra.api.reasons import Reason
from imex_dra.api.views import (
    NODES,
    RESOURCE_SLICES,
    AttributeValue,
    Device,
    Pool,
    ResourceSlice,
    ResourceSliceSpec,
)
from imex_dra.base.clock import Clock
from imex_dra.base.errors import ImexError, NotFound, OtherDriver
from imex_dra.base.waiting import wait_any
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client
from imex_dra.kube.patch import patch_changes
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.node.grant import Snapshot, is_connected, node_obstacle
from imex_dra.node.otherdriver import node_slices, refuse_foreign
from imex_dra.node.state import NodeState

log = structlog.get_logger()

PUBLISH_AFTER = 30.0
"""Default of `imex node --publish-after`: seconds in which a node that is ready for the first time may connect to
all Ready members. After that it is published nevertheless: a member may be dead although its Node still counts as
Ready.
"""
WITHDRAW_AFTER = 15.0
RESTORE_AFTER = 5.0


class PublicationState(StrEnum):
    NEVER = "never"
    PUBLISHED = "published"
    WITHDRAWN = "withdrawn"


class Publication(Struct, frozen=True):
    """Whether devices are published, and since when the node's state demands the opposite."""

    state: PublicationState = PublicationState.NEVER
    pending_since: float | None = None

    @property
    def published(self) -> bool:
        return self.state is PublicationState.PUBLISHED


def next_publication(
    publication: Publication, snapshot: Snapshot, now: float, publish_after: float = PUBLISH_AFTER
) -> tuple[Publication, float | None]:
    """The publication now, and after how many seconds to decide again although nothing changed."""
    obstacle = node_obstacle(snapshot)
    if obstacle is not None and obstacle.explanation.reason is Reason.FABRIC_BROKEN:
        never = publication.state is PublicationState.NEVER
        return Publication(PublicationState.NEVER if never else PublicationState.WITHDRAWN), None
    ready = obstacle is None
    if ready == publication.published:
        return structs.replace(publication, pending_since=None), None
    delay = _delay(publication.state, snapshot, publish_after)
    since = now if publication.pending_since is None else publication.pending_since
    remaining = since + delay - now
    if remaining <= 0:
        return Publication(PublicationState.PUBLISHED if ready else PublicationState.WITHDRAWN), None
    return structs.replace(publication, pending_since=since), remaining


def _delay(state: PublicationState, snapshot: Snapshot, publish_after: float) -> float:
    """How long the node's state must have demanded the opposite."""
    match state:
        case PublicationState.PUBLISHED:
            return WITHDRAW_AFTER
        case PublicationState.WITHDRAWN:
            return RESTORE_AFTER
        case PublicationState.NEVER:
            at_once = snapshot.reading.fabric.state is FabricState.NONE or is_connected(snapshot)
            return 0.0 if at_once else publish_after


def channel_devices(snapshot: Snapshot) -> tuple[Device, ...]:
    """Every device has every attribute: a selector on a missing attribute fails scheduling on all nodes."""
    attributes = {
        "type": AttributeValue(string="channel"),
        "id": AttributeValue(integer=0),
        "clique": AttributeValue(string=snapshot.reading.partition),
        "fabric": AttributeValue(string=snapshot.reading.fabric.state),
    }
    return tuple(Device(name, attributes) for name in device_names(snapshot.max_claims))


def device_names(max_claims: int) -> list[str]:
    return [f"channel-{number}" for number in range(max_claims)]


def resource_slice(snapshot: Snapshot, owner: OwnerReference) -> ResourceSlice:
    return ResourceSlice(
        ObjectMeta(name=f"imex-{snapshot.node}", labels={MANAGED_BY_LABEL: MANAGED_BY}, owner_references=(owner,)),
        ResourceSliceSpec(
            driver=DRIVER,
            pool=Pool(snapshot.node, generation=1, resource_slice_count=1),
            node_name=snapshot.node,
            devices=channel_devices(snapshot),
        ),
    )


class DevicePublisher:
    """Keeps the slice equal to what the node can serve.

    The kubelet deletes slices when it starts, and when a plugin has been gone for a while; the watch shows it, and
    the slice is created again. A slice that exists at start was published by an earlier instance, and is withdrawn
    only as our own would be.
    """

    def __init__(
        self, client: Client, state: NodeState, clock: Clock, *, publish_after: float = PUBLISH_AFTER
    ) -> None:
        self._client = client
        self._state = state
        self._clock = clock
        self._publish_after = publish_after
        self._backoff = Backoff(0.2, 10.0)
        self._publication = Publication()
        self._slice_changed = asyncio.Event()
        self._store: Store[ResourceSlice] = Store()
        self._store.subscribe(lambda old, new: self._slice_changed.set())
        selection = node_slices(state.snapshot.node)
        self._reflector = Reflector(client, RESOURCE_SLICES, self._store, selection=selection)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            await self._reflector.synced.wait()
            if len(self._store):
                self._publication = Publication(PublicationState.PUBLISHED)
            group.create_task(self._publish())

    async def _publish(self) -> NoReturn:
        failures = 0
        while True:
            changed, snapshot = self._state.changed, self._state.snapshot
            self._slice_changed.clear()
            now = self._clock.monotonic()
            self._publication, again = next_publication(self._publication, snapshot, now, self._publish_after)
            try:
                await self._reconcile(snapshot)
                failures = 0
            except OtherDriver:
                raise
            except ImexError as error:
                failures += 1
                again = self._backoff.delay(failures)
                log.warning("cannot write the ResourceSlice", error=str(error), retry_in=again)
            await wait_any(changed, self._slice_changed, timeout=again)

    async def _reconcile(self, snapshot: Snapshot) -> None:
        slices = self._store.values()
        refuse_foreign(snapshot.node, slices)
        if not self._publication.published:
            for live in slices:
                await self._delete(live)
        elif node_obstacle(snapshot) is not None:
            return  # within the delay: what is published stays as it is
        elif not slices:
            await self._create(snapshot)
        else:
            await self._update(slices[0], snapshot)

    async def _create(self, snapshot: Snapshot) -> None:
        node = await self._client.get(NODES, Key("", snapshot.node))
        owner = OwnerReference("v1", "Node", snapshot.node, node.metadata.uid)
        # AlreadyExists is retried like any error, until the watch has delivered the slice.
        self._store.upsert(await self._client.create(RESOURCE_SLICES, resource_slice(snapshot, owner)))

    async def _update(self, live: ResourceSlice, snapshot: Snapshot) -> None:
        devices = channel_devices(snapshot)
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
