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
from imex_sandbox.embedded.kinds import PODS
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.statuses import ApiError, Json
from imex_sandbox.embedded.storage import Change, Key
from imex_sandbox.simulation.containers import Process, read_told
from imex_sandbox.simulation.kinds import CLAIMS
from imex_sandbox.simulation.loop import report_failure
from imex_sandbox.simulation.node import SimulatedNode
from imex_sandbox.simulation.process import Killed

_CALL_LIMIT = 45.0


class Refusal(NamedTuple):
    """A prepare that the driver answered with an error."""

    node: str
    claim: str
    """UID."""
    domain: str
    """UID of the claim's ComputeDomain."""
    began: float
    error: str


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
        self.finished: set[str] = set()
        """UIDs of claims that were unprepared, and not prepared again since the node booted."""
        self._active: set[str] = set()
        """UIDs of claims that a worker takes care of."""
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self.on_process: Callable[[], None] = lambda: None
        self.on_refusal: Callable[[Refusal], None] = lambda refusal: None
        self.unprepared_at: dict[str, float] = {}
        """By UID of the claim: when a call of unprepare last began."""
        self._domains: dict[str, str] = {}
        """By UID of the claim: that of its ComputeDomain. The claim may be gone when its container starts."""
        self._known_since: dict[str, float] = {}
        """By UID of a claim: when a program that can prepare it had read the hardware at the first call."""
        self._partitions: dict[str, list[str]] = {}
        """By UID of a prepared claim: those that can have granted its channel, the latest one last."""
        objects.storage.subscribe(self._on_change)

    async def run(self) -> None:
        while True:
            self._changed.clear()
            if self.node.is_alive:
                for key, pod in self._bound_pods():
                    uid = pod["metadata"]["uid"]
                    if uid not in self._workers:
                        self._workers[uid] = asyncio.create_task(self._run_pod(key, pod))
                        self._workers[uid].add_done_callback(report_failure)
            await self._changed.wait()

    async def reconcile(self) -> None:
        """Unprepares claims of pods that are gone, as the real kubelet does, only less often."""
        while True:
            await asyncio.sleep(300.0)
            if not self.node.is_alive:
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
        self.finished.clear()
        # What was granted before counts no longer: a prepare after the boot is a new one.
        self._known_since.clear()
        self._partitions.clear()
        self.on_process()

    def forget(self) -> None:
        """Another machine: the kubelet starts with an empty disk."""
        self._claims = {}

    def _bound_pods(self) -> list[tuple[Key, Json]]:
        found = self._objects.storage.all(PODS)
        return [
            (key, pod.document) for key, pod in found if pod.document["spec"].get("nodeName") == self.node.name
        ]

    def _on_change(self, change: Change) -> None:
        if change.kind is PODS and change.last.document["spec"].get("nodeName") == self.node.name:
            self._changed.set()

    async def _run_pod(self, key: Key, pod: Json) -> None:
        uid, claims = pod["metadata"]["uid"], self._claims_of(key, pod)
        self._active |= {claim.uid for claim in claims}
        self._domains |= {claim.uid: self._domain_of(claim) for claim in claims}
        try:
            while not await self._is_deleted(key, uid) and not await self._prepare_all(uid, claims):
                await self._pause(key, uid, 60.0 + 30.0 * self._chance.random())
            while not await self._is_deleted(key, uid) and not self._start(uid, claims):
                await self._pause(key, uid, 10.0 + 10.0 * self._chance.random())
            while not await self._is_deleted(key, uid):
                await self._next_change()
            # A container that hangs in the kernel ends late.
            longest = 10.0 if self._chance.random() < 0.75 else 900.0
            await asyncio.sleep(longest * self._chance.random())
            if self.processes.pop(uid, None) is not None:
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
        self.finished -= {claim.uid for claim in claims}
        for claim in claims:
            began, domain = asyncio.get_running_loop().time(), self._domains[claim.uid]
            known_since = self._known_since.setdefault(claim.uid, self.node.hardware_known_since(began))
            try:
                await self._call("prepare", claim)
            except (ImexError, ConnectionError, TimeoutError) as error:
                self.errors[uid] = str(error) or type(error).__name__
                if isinstance(error, ImexError):
                    self.on_refusal(Refusal(self.node.name, claim.uid, domain, began, self.errors[uid]))
                return False
            # The node may be moved between the grant and the start of the container, and even between the last
            # reading of its hardware and the grant. The partition that granted the channel is the one that counts:
            # one in which the node was from the reading that the first call could use until the last call has
            # succeeded. The first call, because an earlier one may have prepared the claim without an answer.
            self._partitions.setdefault(claim.uid, self.node.hardware.partitions_since(known_since))
        self.errors.pop(uid, None)
        return True

    async def _unprepare_all(self, claims: list[ClaimId]) -> bool:
        for claim in claims:
            self.unprepared_at[claim.uid] = asyncio.get_running_loop().time()
            try:
                await self._call("unprepare", claim)
            except (ImexError, ConnectionError, TimeoutError, OSError):
                return False
        done = {claim.uid for claim in claims}
        self.finished |= done
        for uid in done:
            self._known_since.pop(uid, None)
            self._partitions.pop(uid, None)
        self._remember({uid: claim for uid, claim in self._claims.items() if uid not in done})
        return True

    def _domain_of(self, claim: ClaimId) -> str:
        stored = self._objects.storage.get(CLAIMS, Key(claim.namespace, claim.name))
        devices = stored.document["spec"]["devices"] if stored else {}
        return next((c["opaque"]["parameters"]["domainID"] for c in devices.get("config", ())), "")

    async def _call(self, method: str, claim: ClaimId) -> None:
        """A gRPC call: it fails if there is no program, and if it is killed meanwhile. During an update either
        program may get it.
        """
        await asyncio.sleep(0.01 * self._chance.random())
        serving = [program for program in self.node.running() if program.preparer is not None]
        if not serving:
            raise ConnectionError("the plugin is not registered")
        program = serving[-1] if self._chance.random() < 0.7 else self._chance.choice(serving)
        call = program.call(getattr(program.preparer, method)(claim))
        death = asyncio.ensure_future(program.death.wait())
        try:
            await asyncio.wait({call, death}, timeout=_CALL_LIMIT, return_when=asyncio.FIRST_COMPLETED)
            if program.killed or not call.done():
                raise ConnectionError("the plugin died" if program.killed else "no answer in time")
            await call
        except Killed:
            raise ConnectionError("the plugin died") from None
        finally:
            # The program may learn too late, or never, that the kubelet has given up.
            if call.done() or self._chance.random() < 0.5:
                call.cancel()
            else:
                call.add_done_callback(_ignore_result)
            death.cancel()

    def _start(self, uid: str, claims: list[ClaimId]) -> bool:
        """Whether the runtime could create the container."""
        for claim in claims:
            spec = Directory(self.node.root / "cdi").read(claim.uid)
            if spec is None:
                self.errors[uid] = f"CDI device {claim.uid} does not exist"
                return False
            edits = spec.devices[0].container_edits
            told = read_told(edits.env, spec.annotations)
            partitions = self._partitions[claim.uid]
            self.processes[uid] = Process(
                uid,
                claim.uid,
                self.node.name,
                # Only for a node that was moved during the prepare there are several, and the spec names one.
                told.partition if told.partition in partitions else partitions[-1],
                self._domains[claim.uid],
                edits.device_nodes[0].minor if edits.device_nodes else -1,
                told,
                self.node.hardware.moves,
            )
        self.errors.pop(uid, None)
        self.on_process()
        return True

    def _claims_of(self, key: Key, pod: Json) -> list[ClaimId]:
        uid = pod["metadata"]["uid"]
        found = self._objects.storage.all(CLAIMS, key.namespace)
        return [
            ClaimId(claim_key.namespace, claim_key.name, claim.document["metadata"]["uid"])
            for claim_key, claim in found
            if any(one["uid"] == uid for one in claim.document.get("status", {}).get("reservedFor", ()))
        ]

    async def _is_deleted(self, key: Key, uid: str) -> bool:
        """As far as the kubelet can know: without a network it keeps what it has."""
        while not self.node.is_alive:
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


def _ignore_result(call: "asyncio.Task[object]") -> None:
    if not call.cancelled():
        call.exception()
