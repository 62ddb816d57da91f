"""One kubelet: everything that a node does, over a runtime that outlives it.

    <root>/k/plugins_registry     where plugins announce themselves
    <root>/k/dra_manager_state    claims that this node holds
    <root>/run/cdi, etc/cdi       CDI specs
    <root>/pods/<uid>             what pods have on disk
    <root>/log/pods               what their containers wrote

Cancelling `run` is what `kill -9` is to the real one: containers go on, and the next `run` finds them.
"""

import asyncio
import ssl
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec
import structlog

from imex_dra.api.meta import Key
from imex_dra.base.clock import Clock
from imex_dra.kube.client import Selection
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.sandbox.kubelet.claims import Claims
from imex_dra.sandbox.kubelet.client import NodeClient
from imex_dra.sandbox.kubelet.containers import Runtime, Sandbox
from imex_dra.sandbox.kubelet.events import Events
from imex_dra.sandbox.kubelet.grace import SHORTEST_GRACE
from imex_dra.sandbox.kubelet.health import DeviceKey, Health
from imex_dra.sandbox.kubelet.ledger import Ledger
from imex_dra.sandbox.kubelet.logs import Logs
from imex_dra.sandbox.kubelet.node import HEARTBEAT, NodeKeeper
from imex_dra.sandbox.kubelet.nodeobject import NodeFacts
from imex_dra.sandbox.kubelet.orders import OrderDesk
from imex_dra.sandbox.kubelet.parts import RESYNC, RETRY, Parts
from imex_dra.sandbox.kubelet.plugins import CALL_LIMIT, WIPE_DELAY, Plugins
from imex_dra.sandbox.kubelet.pods import PodWorker
from imex_dra.sandbox.kubelet.registry import Registry
from imex_dra.sandbox.kubelet.standins import Rule
from imex_dra.sandbox.kubelet.views.pod import PODS, Pod
from imex_dra.sandbox.kubelet.volumes import Volumes

log = structlog.get_logger()


@dataclass(frozen=True)
class Timing:
    """The real kubelet's, all of them."""

    resync: float = RESYNC
    retry: float = RETRY
    reconcile: float = 60.0
    wipe_delay: float = WIPE_DELAY
    call_limit: float = CALL_LIMIT
    heartbeat: float = HEARTBEAT


class Kubelet:
    def __init__(
        self,
        facts: NodeFacts,
        root: Path,
        *,
        client: NodeClient,
        runtime: Runtime,
        clock: Clock,
        timing: Timing | None = None,
        rules: tuple[Rule, ...] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        timing = timing or Timing()
        self._facts = facts
        self._tls = tls
        self._clock = clock
        self._logs = Logs(root)
        self._runtime = runtime
        self._timing = timing
        self._keeper = NodeKeeper(client, facts, clock, heartbeat=timing.heartbeat)
        self._health = Health(clock.monotonic, self._health_changed)
        self._plugins = Plugins(
            self._keeper.wipe_slices,
            self._health.listen,
            wipe_delay=timing.wipe_delay,
            call_limit=timing.call_limit,
        )
        self._registry = Registry(root / "k" / "plugins_registry", self._plugins)
        self._claims = Claims(client, self._plugins, Ledger(root / "k"))
        self._events = Events(client, facts.name, clock)
        desk = OrderDesk(self._claims, Volumes(client), root, facts.address, rules)
        self._parts = Parts(
            facts,
            client,
            self._claims,
            runtime,
            desk,
            self._health,
            self._events,
            clock,
            timing.resync,
            timing.retry,
        )
        self._pods: Store[Pod] = Store()
        self._reflector = Reflector(
            client, PODS, self._pods, selection=Selection(fields=f"spec.nodeName={facts.name}")
        )
        self._workers: dict[str, PodWorker] = {}

    async def run(self) -> NoReturn:
        self._runtime.on_end = self._container_ended
        try:
            async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
                port = await self._open_door(stack)
                self._pods.subscribe(lambda old, new: self._changed(group, old, new))
                for work in (
                    self._keeper.run(port),
                    self._keeper.wipe_slices(),
                    self._registry.run(),
                    self._events.run(),
                    self._reflector.run(),
                    self._reconcile(group),
                ):
                    group.create_task(work)
        finally:
            self._runtime.on_end = lambda uid: None
            await self._plugins.close()
        raise AssertionError("none of them ends")

    async def _open_door(self, stack: AsyncExitStack) -> int:
        """The port of its own API; 0 if it has none. (What that takes is loaded only then: 10 MB.)"""
        if self._tls is None:
            return 0
        from imex_dra.sandbox.kubelet.endpoint import Endpoint

        endpoint = Endpoint(self._find, self._runtime, self._logs, self._clock)
        return await stack.enter_async_context(endpoint.open(self._facts.address, self._tls))

    def _find(self, namespace: str, name: str) -> Pod | None:
        """With the status that we give it, not with the one that came back from the API server so far."""
        pod = self._pods.get(Key(namespace, name))
        worker = self._workers.get(pod.uid) if pod else None
        if worker is None or worker.reports.shown is None:
            return pod
        return msgspec.structs.replace(worker.pod, status=worker.reports.shown)

    def _changed(self, group: asyncio.TaskGroup, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None and (worker := self._workers.get(old.uid)):
                worker.vanish()
        elif worker := self._workers.get(new.uid):
            worker.update(new)
        else:
            worker = self._workers[new.uid] = PodWorker(new, self._parts)
            group.create_task(self._attend(worker))

    async def _attend(self, worker: PodWorker) -> None:
        """A pod that is finished but still listed, for a finalizer's sake, must not be started anew."""
        await worker.run()
        await worker.gone.wait()
        self._logs.remove(worker.pod)
        del self._workers[worker.pod.uid]

    def _health_changed(self, devices: set[DeviceKey]) -> None:
        for uid in self._claims.pods_with(devices) & self._workers.keys():
            self._workers[uid].look_again()

    def _container_ended(self, uid: str) -> None:
        if worker := self._workers.get(uid):
            worker.look_again()

    async def _reconcile(self, group: asyncio.TaskGroup) -> NoReturn:
        await self._reflector.synced.wait()
        for uid in self._runtime.sandboxes.keys() - self._workers.keys():
            group.create_task(self._end_orphan(self._runtime.sandboxes[uid]))
        self._logs.sweep(self._workers)
        while True:
            await asyncio.sleep(self._timing.reconcile)
            await self._claims.reconcile(set(self._workers))

    async def _end_orphan(self, sandbox: Sandbox) -> None:
        """Of a pod that went while we were away; its claims are reconciled by the minute, as the real one does."""
        log.info("a pod that nobody knows is ended", pod=sandbox.pod.uid)
        await sandbox.stop(lambda: SHORTEST_GRACE, asyncio.Event())
        self._runtime.remove(sandbox.pod.uid)
        self._parts.desk.clear(sandbox)
