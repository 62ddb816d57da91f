"""Keeps the node known and alive: its Node object and its Lease; and removes slices that nobody answers for."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import msgspec
import structlog

from imex_dra.api.meta import Key, ObjectMeta, Resource, View
from imex_dra.api.views import RESOURCE_SLICES
from imex_dra.base.chance import fraction
from imex_dra.base.clock import Clock, rfc3339_micro
from imex_dra.base.errors import AlreadyExists, ImexError, NotFound
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Selection
from imex_dra.sandbox.kubelet import nodeobject
from imex_dra.sandbox.kubelet.client import NodeClient
from imex_dra.sandbox.kubelet.nodeobject import NodeFacts

log = structlog.get_logger()

R = TypeVar("R")

STRATEGIC_PATCH = "application/strategic-merge-patch+json"
LEASE_SECONDS = 40
HEARTBEAT = 10.0
REPORT = 300.0
_SILENCE = 2.0
"""Heartbeats without an answer."""
_LEASES = "kube-node-lease"


class Node(View, frozen=True):
    metadata: ObjectMeta
    status: dict[str, Any] = {}


class Lease(View, frozen=True):
    metadata: ObjectMeta
    spec: dict[str, Any] = {}


NODES = Resource(Node, "", "v1", "nodes", namespaced=False)
LEASES = Resource(Lease, "coordination.k8s.io", "v1", "leases")


class NodeKeeper:
    def __init__(
        self, client: NodeClient, facts: NodeFacts, clock: Clock, *, heartbeat: float = HEARTBEAT
    ) -> None:
        self._facts = facts
        self._client = client
        self._clock = clock
        self._heartbeat = heartbeat
        self._key = Key("", facts.name)
        self._port = 0
        self._registered = asyncio.Event()

    async def run(self, port: int = 0) -> NoReturn:
        """`port` is where the kubelet's own API is, if it has one."""
        self._port = port
        node = await self._until_done("register", self._register)
        self._registered.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat(node))
            group.create_task(self._report())
        raise AssertionError("neither ends")

    async def wipe_slices(self, driver: str = "") -> None:
        """Of all drivers, or of one; goes on until it is done."""
        await self._registered.wait()
        selector = f"spec.nodeName={self._facts.name}" + (f",spec.driver={driver}" if driver else "")

        async def wipe() -> None:
            await self._client.delete_all(RESOURCE_SLICES, Selection(fields=selector))

        await self._until_done("wipe the slices", wipe)

    async def _until_done(self, what: str, work: Callable[[], Awaitable[R]]) -> R:
        backoff, failures = Backoff(0.5, 30.0), 0
        while True:
            try:
                return await work()
            except ImexError as error:
                failures += 1
                log.warning("a node failed and tries again", node=self._facts.name, to=what, error=str(error))
                await asyncio.sleep(backoff.delay(failures))

    async def _register(self) -> Node:
        fresh = msgspec.convert(nodeobject.node(self._facts, self._clock.now(), self._port), type=Node)
        try:
            return await self._client.create(NODES, fresh)
        except AlreadyExists:
            labels = nodeobject.labels(self._facts)
            await self._client.patch(NODES, self._key, {"metadata": {"labels": labels}})
            return await self._write_status()

    async def _write_status(self) -> Node:
        live = await self._client.get(NODES, self._key)
        known = live.status.get("conditions", ())
        since = {(c["type"], c["status"]): c["lastTransitionTime"] for c in known if c.get("lastTransitionTime")}
        status = nodeobject.status(self._facts, self._clock.now(), since, self._port)
        return await self._client.patch(
            NODES, self._key, {"status": status}, subresource="status", content_type=STRATEGIC_PATCH
        )

    async def _report(self) -> NoReturn:
        while True:
            await asyncio.sleep(REPORT * (0.9 + 0.2 * fraction()))
            try:
                await self._write_status()
            except ImexError as error:
                log.warning("the node's status was not written", node=self._facts.name, error=str(error))

    async def _beat(self, node: Node) -> NoReturn:
        """After a silence Kubernetes may have called us lost; a renewed lease alone does not take that back."""
        heard = self._clock.monotonic()
        while True:
            try:
                await self._renew(node)
                if self._clock.monotonic() - heard > _SILENCE * self._heartbeat:
                    await self._write_status()
                heard = self._clock.monotonic()
            except ImexError as error:
                log.warning("the node's lease was not renewed", node=self._facts.name, error=str(error))
            await asyncio.sleep(self._heartbeat * (0.96 + 0.08 * fraction()))

    async def _renew(self, node: Node) -> None:
        renewed = {"renewTime": rfc3339_micro(self._clock.now())}
        try:
            await self._client.patch(LEASES, Key(_LEASES, self._facts.name), {"spec": renewed})
        except NotFound:
            spec = {"holderIdentity": self._facts.name, "leaseDurationSeconds": LEASE_SECONDS, **renewed}
            await self._client.create(LEASES, _lease(node, spec))


def _lease(node: Node, spec: dict[str, Any]) -> Lease:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}
    meta = {"name": node.metadata.name, "namespace": _LEASES, "ownerReferences": [owner]}
    return msgspec.convert({"metadata": meta, "spec": spec}, type=Lease)
