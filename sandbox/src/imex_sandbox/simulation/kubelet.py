"""A node's kubelet, as far as DRA is concerned: it prepares, retries, starts processes and unprepares.

The contract is that of the real kubelet: 45 s for a call, 60 to 90 s until a retry, unprepare until it succeeds,
and a checkpoint of its own that lists a claim from before its first prepare until after its unprepare.
"""

import asyncio
import json
import random
from collections.abc import Callable
from typing import NamedTuple

from imex_dra.base.errors import ImexError
from imex_dra.cdi.directory import Directory
from imex_dra.dra.plugin import ClaimId
from imex_sandbox.embedded.kinds import PODS, find_kind
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.statuses import ApiError, Json
from imex_sandbox.embedded.storage import Change, Key
from imex_sandbox.simulation.node import SimulatedNode
from imex_sandbox.simulation.process import Killed

_CALL_LIMIT = 45.0
CLAIMS = find_kind("resource.k8s.io", "v1", "resourceclaims")


class Process(NamedTuple):
    """A container that runs with a channel."""

    pod: str
    """UID."""
    node: str
    domain: str
    channel: int
    """-1: none."""


class Kubelet:
    def __init__(self, node: SimulatedNode, objects: Objects, chance: random.Random) -> None:
        self.node = node
        self.processes: dict[str, Process] = {}
        """By pod UID."""
        self.errors: dict[str, str] = {}
        """The last prepare error of a pod, by UID."""
        self._objects = objects
        self._chance = chance
        self._claims: dict[str, ClaimId] = {}
        """By UID: the kubelet's own checkpoint."""
        self._active: set[str] = set()
        """UIDs of claims that a worker takes care of."""
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self.on_process: Callable[[], None] = lambda: None
        objects.storage.subscribe(self._on_change)

    async def run(self) -> None:
        while True:
            self._changed.clear()
            if self.node.powered and not self.node.link_is_cut:
                for key, pod in self._bound_pods():
                    uid = pod["metadata"]["uid"]
                    if uid not in self._workers:
                        self._workers[uid] = asyncio.create_task(self._run_pod(key, pod))
            await self._changed.wait()

    async def reconcile(self) -> None:
        """Unprepares claims of pods that are gone, as the real kubelet does, only less often."""
        while True:
            await asyncio.sleep(300.0)
            if not self.node.powered or self.node.link_is_cut:
                continue
            used = {claim.uid for key, pod in self._bound_pods() for claim in self._claims_of(key, pod)}
            idle = [claim for uid, claim in self._claims.items() if uid not in used | self._active]
            if idle:
                await self._unprepare_all(idle)

    def wake(self) -> None:
        self._changed.set()

    def reboot(self) -> None:
        """No process survives, and no call that is under way."""
        for worker in self._workers.values():
            worker.cancel()
        self._workers.clear()
        self.processes.clear()
        self.on_process()

    def _bound_pods(self) -> list[tuple[Key, Json]]:
        found = self._objects.storage.all(PODS)
        return [
            (key, pod.document) for key, pod in found if pod.document["spec"].get("nodeName") == self.node.name
        ]

    def _on_change(self, change: Change) -> None:
        if change.kind is PODS:
            self._changed.set()

    async def _run_pod(self, key: Key, pod: Json) -> None:
        uid, claims = pod["metadata"]["uid"], self._claims_of(key, pod)
        self._active |= {claim.uid for claim in claims}
        try:
            while not await self._is_deleted(key, uid) and not await self._prepare_all(uid, claims):
                await self._pause(key, uid, 60.0 + 30.0 * self._chance.random())
            if all(claim.uid in self._claims for claim in claims) and not await self._is_deleted(key, uid):
                self._start(uid, claims)
            while not await self._is_deleted(key, uid):
                await self._next_change()
            await asyncio.sleep(10.0 * self._chance.random())
            self.processes.pop(uid, None)
            self.on_process()
            while not await self._unprepare_all(claims):  # noqa: ASYNC110 - the kubelet polls, too
                await asyncio.sleep(60.0 + 30.0 * self._chance.random())
            self._delete(key, uid)
        finally:
            self._active -= {claim.uid for claim in claims}
            if self._workers.get(uid) is asyncio.current_task():
                del self._workers[uid]

    async def _prepare_all(self, uid: str, claims: list[ClaimId]) -> bool:
        self._remember(self._claims | {claim.uid: claim for claim in claims})
        for claim in claims:
            try:
                await self._call("prepare", claim)
            except (ImexError, ConnectionError, TimeoutError) as error:
                self.errors[uid] = str(error) or type(error).__name__
                return False
        self.errors.pop(uid, None)
        return True

    async def _unprepare_all(self, claims: list[ClaimId]) -> bool:
        for claim in claims:
            try:
                await self._call("unprepare", claim)
            except (ImexError, ConnectionError, TimeoutError, OSError):
                return False
        done = {claim.uid for claim in claims}
        self._remember({uid: claim for uid, claim in self._claims.items() if uid not in done})
        return True

    async def _call(self, method: str, claim: ClaimId) -> None:
        """A gRPC call: it fails if the program is not there, and if it is killed meanwhile."""
        await asyncio.sleep(0.01 * self._chance.random())
        program, preparer = self.node.program, self.node.preparer
        if program is None or not program.running or preparer is None:
            raise ConnectionError("the plugin is not registered")
        call = program.call(getattr(preparer, method)(claim))
        try:
            async with asyncio.timeout(_CALL_LIMIT):
                while not call.done():
                    if program.killed:
                        raise ConnectionError("the plugin died")
                    await asyncio.wait({call}, timeout=1.0)
                await call
        except Killed:
            raise ConnectionError("the plugin died") from None
        finally:
            call.cancel()

    def _start(self, uid: str, claims: list[ClaimId]) -> None:
        for claim in claims:
            spec = Directory(self.node.root / "cdi").read(claim.uid)
            if spec is None:
                self.errors[uid] = f"CDI device {claim.uid} does not exist"
                return
            edits = spec.devices[0].container_edits
            domain = next(e.partition("=")[2] for e in edits.env if e.startswith("COMPUTE_DOMAIN_UUID="))
            channel = edits.device_nodes[0].minor if edits.device_nodes else -1
            self.processes[uid] = Process(uid, self.node.name, domain, channel)
        self.on_process()

    def _claims_of(self, key: Key, pod: Json) -> list[ClaimId]:
        assert CLAIMS is not None
        uid = pod["metadata"]["uid"]
        found = self._objects.storage.all(CLAIMS, key.namespace)
        return [
            ClaimId(claim_key.namespace, claim_key.name, claim.document["metadata"]["uid"])
            for claim_key, claim in found
            if any(one["uid"] == uid for one in claim.document.get("status", {}).get("reservedFor", ()))
        ]

    async def _is_deleted(self, key: Key, uid: str) -> bool:
        """As far as the kubelet can know: without a network it keeps what it has."""
        while not self.node.powered or self.node.link_is_cut:
            await self._next_change()
        pod = self._objects.storage.get(PODS, key)
        return (
            pod is None
            or pod.document["metadata"]["uid"] != uid
            or bool(pod.document["metadata"].get("deletionTimestamp"))
        )

    async def _pause(self, key: Key, uid: str, seconds: float) -> None:
        """Until the retry, or until the pod is deleted."""
        ends = asyncio.get_running_loop().time() + seconds
        while (remaining := ends - asyncio.get_running_loop().time()) > 0 and not await self._is_deleted(key, uid):
            await self._next_change(remaining)

    async def _next_change(self, limit: float = 3600.0) -> None:
        waiter = asyncio.ensure_future(self._changed.wait())
        await asyncio.wait({waiter}, timeout=limit)
        waiter.cancel()
        await asyncio.sleep(0.05)

    def _delete(self, key: Key, uid: str) -> None:
        pod = self._objects.storage.get(PODS, key)
        if pod is not None and pod.document["metadata"]["uid"] == uid:
            try:
                self._objects.delete(PODS, key, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
            except ApiError as error:
                self.errors[uid] = str(error)

    def _remember(self, claims: dict[str, ClaimId]) -> None:
        self._claims = claims
        content = {"Data": json.dumps([{"ClaimUID": uid} for uid in sorted(claims)])}
        self.node.kubelet_checkpoint.write_text(json.dumps(content))
