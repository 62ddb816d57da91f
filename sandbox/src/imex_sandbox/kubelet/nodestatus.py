"""The node on the API server: registration, Node status, Lease heartbeats, and the removal of ResourceSlices.

The Node object is computed by pure functions from the node's facts and the time; `NodeStatusUpdater` writes it.
"""

import asyncio
import platform
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn, TypeVar

import msgspec
import structlog

from imex_dra.api.meta import Key, ObjectMeta, Resource, View
from imex_dra.api.views import RESOURCE_SLICES
from imex_dra.base.clock import Clock, rfc3339, rfc3339_micro
from imex_dra.base.errors import AlreadyExists, ImexError, NotFound
from imex_dra.kube.backoff import Backoff, random_fraction
from imex_dra.kube.client import Selection
from imex_sandbox.kubelet.client import STRATEGIC_PATCH, NodeClient
from imex_sandbox.kubelet.config import NodeFacts
from imex_sandbox.kubelet.podstate import Json
from imex_sandbox.kubernetes.versions import kubernetes

log = structlog.get_logger()

R = TypeVar("R")

LEASE_DURATION = 40
RENEW_PERIOD = 10.0
STATUS_PERIOD = 300.0
_LEASE_NAMESPACE = "kube-node-lease"
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_CAPACITY = {
    "cpu": "144",
    "memory": f"{960 * 1024 * 1024}Ki",
    "pods": "110",
    "ephemeral-storage": "1874374728Ki",
    "hugepages-1Gi": "0",
    "hugepages-2Mi": "0",
}
_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


class Node(View, frozen=True):
    metadata: ObjectMeta
    status: Json = {}


class Lease(View, frozen=True):
    metadata: ObjectMeta
    spec: Json = {}


NODES = Resource(Node, "", "v1", "nodes", namespaced=False)
LEASES = Resource(Lease, "coordination.k8s.io", "v1", "leases")


class NodeStatusUpdater:
    def __init__(self, client: NodeClient, facts: NodeFacts, clock: Clock) -> None:
        self._facts = facts
        self._client = client
        self._clock = clock
        self._key = Key("", facts.name)
        self._registered = asyncio.Event()

    async def run(self, port: int) -> NoReturn:
        """`port` is where the kubelet's own API listens."""
        node = await self._retry("register the node", lambda: self._register(port))
        self._registered.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew_lease(node, port))
            group.create_task(self._update_status(port))
        raise AssertionError("unreachable: neither task ends")

    async def wipe_resource_slices(self, driver: str = "") -> None:
        """Deletes this node's ResourceSlices, of one driver or of all; retries until it succeeds."""
        await self._registered.wait()
        selector = f"spec.nodeName={self._facts.name}" + (f",spec.driver={driver}" if driver else "")

        async def wipe() -> None:
            await self._client.delete_all(RESOURCE_SLICES, Selection(fields=selector))

        await self._retry("delete its ResourceSlices", wipe)

    async def _retry(self, what: str, work: Callable[[], Awaitable[R]]) -> R:
        backoff, failures = Backoff(0.5, 30.0), 0
        while True:
            try:
                return await work()
            except ImexError as error:
                failures += 1
                log.warning("request failed, will retry", node=self._facts.name, to=what, error=str(error))
                await asyncio.sleep(backoff.delay(failures))

    async def _register(self, port: int) -> Node:
        meta = {"name": self._facts.name, "labels": node_labels(self._facts)}
        status = node_status(self._facts, self._clock.now(), {}, port)
        try:
            return await self._client.create(
                NODES, msgspec.convert({"metadata": meta, "status": status}, type=Node)
            )
        except AlreadyExists:
            await self._client.patch(NODES, self._key, {"metadata": {"labels": meta["labels"]}})
            return await self._write_status(port)

    async def _write_status(self, port: int) -> Node:
        live = await self._client.get(NODES, self._key)
        conditions = live.status.get("conditions", ())
        since = {
            (c["type"], c["status"]): c["lastTransitionTime"] for c in conditions if c.get("lastTransitionTime")
        }
        status = node_status(self._facts, self._clock.now(), since, port)
        return await self._client.patch(
            NODES, self._key, {"status": status}, subresource="status", content_type=STRATEGIC_PATCH
        )

    async def _update_status(self, port: int) -> NoReturn:
        while True:
            await asyncio.sleep(STATUS_PERIOD * (0.9 + 0.2 * random_fraction()))
            try:
                await self._write_status(port)
            except ImexError as error:
                log.warning("cannot update the Node status", node=self._facts.name, error=str(error))

    async def _renew_lease(self, node: Node, port: int) -> NoReturn:
        renewed_at = self._clock.monotonic()
        while True:
            try:
                await self._renew(node)
                # After an outage the node controller may have set Ready to Unknown. A renewed Lease alone does
                # not reset that, so the status is written too.
                if self._clock.monotonic() - renewed_at > 2 * RENEW_PERIOD:
                    await self._write_status(port)
                renewed_at = self._clock.monotonic()
            except ImexError as error:
                log.warning("cannot renew the node's Lease", node=self._facts.name, error=str(error))
            await asyncio.sleep(RENEW_PERIOD * (0.96 + 0.08 * random_fraction()))

    async def _renew(self, node: Node) -> None:
        renewed = {"renewTime": rfc3339_micro(self._clock.now())}
        try:
            await self._client.patch(LEASES, Key(_LEASE_NAMESPACE, self._facts.name), {"spec": renewed})
        except NotFound:
            spec = {"holderIdentity": self._facts.name, "leaseDurationSeconds": LEASE_DURATION, **renewed}
            await self._client.create(LEASES, _lease(node, spec))


def node_labels(facts: NodeFacts) -> dict[str, str]:
    platform_labels = {"os": "linux", "arch": _ARCHITECTURE}
    return {
        "kubernetes.io/hostname": facts.name,
        **{f"kubernetes.io/{key}": value for key, value in platform_labels.items()},
        **{f"beta.kubernetes.io/{key}": value for key, value in platform_labels.items()},
        **facts.labels,
    }


def node_status(facts: NodeFacts, now: datetime, since: Mapping[tuple[str, str], str], port: int) -> Json:
    """`since` maps a condition's type and status to its last transition time, as far as it is known."""
    gpus = {"nvidia.com/gpu": str(facts.gpus)} if facts.gpus else {}
    capacity = {**_CAPACITY, **gpus, **facts.resources}
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [
            {"type": "InternalIP", "address": facts.address},
            {"type": "Hostname", "address": facts.name},
        ],
        "conditions": _conditions(now, since),
        "nodeInfo": _node_info(facts),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        # The API server then passes kubectl's WebSocket on to the kubelet instead of using SPDY.
        "declaredFeatures": ["ExtendWebSocketsToKubelet"],
    }


def _conditions(now: datetime, since: Mapping[tuple[str, str], str]) -> list[Json]:
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": rfc3339(now),
            "lastTransitionTime": since.get((kind, status), rfc3339(now)),
        }
        for kind, status, reason, message in _CONDITIONS
    ]


def _node_info(facts: NodeFacts) -> Json:
    return {
        "architecture": _ARCHITECTURE,
        "bootID": facts.boot_id,
        "containerRuntimeVersion": "imex-sandbox://1",
        "kernelVersion": platform.release(),
        "kubeletVersion": f"{kubernetes()}+imex-sandbox",
        "kubeProxyVersion": "",
        "machineID": facts.boot_id.replace("-", ""),
        "operatingSystem": "linux",
        "osImage": "imex-dra sandbox",
        "systemUUID": facts.boot_id,
    }


def _lease(node: Node, spec: dict[str, Any]) -> Lease:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}
    meta = {"name": node.metadata.name, "namespace": _LEASE_NAMESPACE, "ownerReferences": [owner]}
    return msgspec.convert({"metadata": meta, "spec": spec}, type=Lease)
