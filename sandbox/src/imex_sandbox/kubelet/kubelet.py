"""One simulated kubelet: the parts of a node, connected, over a container runtime that outlives it.

    <root>/k/plugins_registry     sockets of plugins that want to register
    <root>/k/dra_manager_state    checkpoint of the claims on this node
    <root>/run/cdi, etc/cdi       CDI specs
    <root>/pods/<uid>             files of a pod
    <root>/log/pods               container logs

To cancel `run` is what `kill -9` is to the real kubelet: containers continue, and the next `run` finds them.
"""

import asyncio
import ssl
from pathlib import Path
from typing import NoReturn

import msgspec
import structlog

from imex_dra.api.meta import Key
from imex_dra.base.clock import Clock
from imex_dra.kube.client import Selection
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_sandbox.kubelet.checkpoint import ClaimCheckpoint
from imex_sandbox.kubelet.client import NodeClient
from imex_sandbox.kubelet.config import NodeFacts, StandIn
from imex_sandbox.kubelet.containerstarter import ContainerConfigBuilder
from imex_sandbox.kubelet.devicehealth import DeviceHealthCache, DeviceKey
from imex_sandbox.kubelet.dra import DraManager
from imex_sandbox.kubelet.events import EventRecorder
from imex_sandbox.kubelet.logs import PodLogs
from imex_sandbox.kubelet.nodestatus import NodeStatusUpdater
from imex_sandbox.kubelet.plugins import DraPlugins
from imex_sandbox.kubelet.pluginwatcher import PluginWatcher
from imex_sandbox.kubelet.podactions import MIN_GRACE_PERIOD
from imex_sandbox.kubelet.podworker import Dependencies, PodWorker
from imex_sandbox.kubelet.runtime import ContainerRuntime, PodSandbox
from imex_sandbox.kubelet.server import KubeletServer
from imex_sandbox.kubelet.views.pod import PODS, Pod

log = structlog.get_logger()

RECONCILE_PERIOD = 60.0


class Kubelet:
    def __init__(
        self,
        facts: NodeFacts,
        root: Path,
        *,
        client: NodeClient,
        runtime: ContainerRuntime,
        clock: Clock,
        stand_ins: tuple[StandIn, ...],
        tls: ssl.SSLContext,
    ) -> None:
        self._facts = facts
        self._tls = tls
        self._logs = PodLogs(root)
        self._runtime = runtime
        self._server = KubeletServer(self._find_pod, runtime, self._logs, clock)
        self._node_status = NodeStatusUpdater(client, facts, clock)
        health = DeviceHealthCache(clock.monotonic, self._device_health_changed)
        self._plugins = DraPlugins(self._node_status.wipe_resource_slices, health.watch)
        self._plugin_watcher = PluginWatcher(root / "k" / "plugins_registry", self._plugins)
        self._dra = DraManager(client, self._plugins, ClaimCheckpoint(root / "k"), health)
        self._events = EventRecorder(client, facts.name, clock)
        self._builder = ContainerConfigBuilder(client, self._dra, root, facts.address, stand_ins)
        self._deps = Dependencies(facts, client, self._dra, runtime, self._builder, self._events, clock)
        self._pods: Store[Pod] = Store()
        self._reflector = Reflector(
            client, PODS, self._pods, selection=Selection(fields=f"spec.nodeName={facts.name}")
        )
        self._workers: dict[str, PodWorker] = {}

    async def run(self) -> NoReturn:
        self._runtime.on_exit = self._container_exited
        try:
            async with (
                self._server.listening(self._facts.address, self._tls) as port,
                asyncio.TaskGroup() as group,
            ):
                self._pods.subscribe(lambda old, new: self._pod_changed(group, old, new))
                for work in (
                    self._node_status.run(port),
                    self._node_status.wipe_resource_slices(),
                    self._plugin_watcher.run(),
                    self._events.run(),
                    self._reflector.run(),
                    self._clean_up(group),
                ):
                    group.create_task(work)
        finally:
            self._runtime.on_exit = lambda uid: None
            await self._plugins.close()
        raise AssertionError("unreachable: most tasks never end")

    def _find_pod(self, namespace: str, name: str) -> Pod | None:
        """With the status that this kubelet wrote, which the watch may not have delivered yet."""
        pod = self._pods.get(Key(namespace, name))
        worker = self._workers.get(pod.uid) if pod else None
        if worker is None or worker.status.current is None:
            return pod
        return msgspec.structs.replace(worker.pod, status=worker.status.current)

    def _pod_changed(self, group: asyncio.TaskGroup, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None and (worker := self._workers.get(old.uid)):
                worker.pod_removed()
        elif worker := self._workers.get(new.uid):
            worker.update(new)
        else:
            worker = self._workers[new.uid] = PodWorker(new, self._deps)
            group.create_task(self._run_worker(worker))

    async def _run_worker(self, worker: PodWorker) -> None:
        await worker.run()
        # A finalizer can keep a finished pod on the API server. Its worker stays known until the pod is removed:
        # otherwise the next update would start the pod again.
        await worker.removed.wait()
        self._logs.remove(worker.pod)
        del self._workers[worker.pod.uid]

    def _device_health_changed(self, devices: set[DeviceKey]) -> None:
        for uid in self._dra.pods_using(devices) & self._workers.keys():
            self._workers[uid].trigger()

    def _container_exited(self, uid: str) -> None:
        if worker := self._workers.get(uid):
            worker.trigger()

    async def _clean_up(self, group: asyncio.TaskGroup) -> NoReturn:
        """Removes what is left of pods that were deleted while no kubelet ran."""
        await self._reflector.synced.wait()
        for uid in self._runtime.sandboxes.keys() - self._workers.keys():
            group.create_task(self._stop_orphan(self._runtime.sandboxes[uid]))
        self._logs.remove_orphans(self._workers)
        while True:
            await asyncio.sleep(RECONCILE_PERIOD)
            await self._dra.reconcile(set(self._workers))

    async def _stop_orphan(self, sandbox: PodSandbox) -> None:
        """Its claims are unprepared by the next `reconcile`, as in the real kubelet."""
        log.info("stopping the sandbox of a deleted pod", pod=sandbox.pod.uid)
        await sandbox.stop(lambda: MIN_GRACE_PERIOD, asyncio.Event())
        self._runtime.remove_sandbox(sandbox.pod.uid)
        self._builder.clean_up_pod(sandbox)
