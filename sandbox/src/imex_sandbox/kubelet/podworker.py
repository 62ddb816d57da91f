"""The pod worker: takes one pod from its binding to its termination.

In each sync it compares the desired state with what runs, computes the next actions (`podactions`), executes
them, writes the status (`podstatus`), and waits for the next change. All of its state can be recovered after a
restart of the kubelet: containers are in the runtime, claims in the checkpoint, the rest on the API server.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from imex_dra.api.meta import is_deleting, key_of
from imex_dra.base.clock import Clock
from imex_dra.base.errors import ImexError, NotFound
from imex_dra.base.waiting import wait_any
from imex_dra.kube.backoff import random_fraction
from imex_sandbox.kubelet.client import NodeClient
from imex_sandbox.kubelet.config import NodeFacts
from imex_sandbox.kubelet.containerstarter import ContainerConfigBuilder, ContainerStarter
from imex_sandbox.kubelet.dra import DraManager
from imex_sandbox.kubelet.events import EventRecorder
from imex_sandbox.kubelet.podactions import PodActions, compute_pod_actions, grace_period
from imex_sandbox.kubelet.podstate import ContainerRuns, PodState, lost_run
from imex_sandbox.kubelet.podstatus import TERMINAL_PHASES, PodStatusWriter
from imex_sandbox.kubelet.prober import FailedProbe, Prober, killing_message, must_stop_pod
from imex_sandbox.kubelet.runtime import ContainerRuntime, PodSandbox
from imex_sandbox.kubelet.views.pod import PODS, ContainerStatus, Pod

log = structlog.get_logger()

RESYNC_PERIOD = 60.0
"""Also the delay after a failed prepare: the real kubelet does not treat that as a sync error."""

RETRY_PERIOD = 10.0


@dataclass(frozen=True)
class Dependencies:
    """What the pod workers of a node share."""

    facts: NodeFacts
    client: NodeClient
    dra: DraManager
    runtime: ContainerRuntime
    builder: ContainerConfigBuilder
    events: EventRecorder
    clock: Clock


@dataclass
class PodWorker:
    pod: Pod
    deps: Dependencies
    finished: bool = False
    removed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the pod does not exist on the API server any more."""
    _done: bool = False
    _updated: asyncio.Event = field(default_factory=asyncio.Event)
    """The desired state changed."""
    _triggered: asyncio.Event = field(default_factory=asyncio.Event)
    """Something happened on the node."""
    _runs: ContainerRuns = field(default_factory=dict)
    """As last reported: the final status needs them after the sandbox is removed."""
    _prober: Prober | None = None
    _known_running: tuple[ContainerStatus, ...] = ()
    """Containers that the API reported as running when this worker started, before it wrote its own status."""

    def __post_init__(self) -> None:
        self.status = PodStatusWriter(self.deps.client)
        self._starter = ContainerStarter(self.deps.builder, self.deps.runtime, self.deps.events)
        statuses = self.pod.status.container_statuses
        self._known_running = tuple(known for known in statuses if known.state.running is not None)

    def update(self, pod: Pod) -> None:
        changed = pod.desired_state != self.pod.desired_state
        self.pod = pod
        if changed:
            self._updated.set()

    def pod_removed(self) -> None:
        self.removed.set()
        self._updated.set()

    def trigger(self) -> None:
        """Syncs soon: a container exited, a probe changed its verdict, or a device its health."""
        self._triggered.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            await self._sync_until_finished(group)
            self._stop_probes()

    async def _sync_until_finished(self, group: asyncio.TaskGroup) -> None:
        while not self.finished:
            # Cleared before the sync: whatever changes while it runs starts another one.
            self._updated.clear()
            self._triggered.clear()
            try:
                delay = await self._sync(group)
            except Exception as error:
                delay = _jittered(RETRY_PERIOD)
                unexpected = None if isinstance(error, ImexError) else error
                log.warning("cannot sync a pod", pod=str(key_of(self.pod)), error=str(error), exc_info=unexpected)
            if not self.finished:
                await wait_any(self._updated, self._triggered, timeout=delay)

    async def _sync(self, group: asyncio.TaskGroup) -> float:
        """Returns the seconds until the next sync."""
        if self._is_terminating():
            return await self._terminate()
        sandbox = self._sandbox()
        if sandbox is None:
            await self._write_status()
            if not await self._prepare_claims():
                return _jittered(RESYNC_PERIOD)
            # The pod may have been deleted during the prepare: do not start containers for it.
            if self._is_terminating():
                return 0.0
            sandbox = self._create_sandbox()
        if not await self._set_up_volumes(sandbox):
            return _jittered(RETRY_PERIOD)
        return await self._sync_containers(sandbox, self._start_probes(sandbox, group))

    def _is_terminating(self) -> bool:
        deleted = self.removed.is_set() or is_deleting(self.pod)
        return self._done or deleted or self.pod.status.phase in TERMINAL_PHASES

    def _sandbox(self) -> PodSandbox | None:
        return self.deps.runtime.sandboxes.get(self.pod.uid)

    async def _prepare_claims(self) -> bool:
        try:
            await self.deps.dra.prepare(self.pod)
        except ImexError as error:
            message = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
            self.deps.events.warning(self.pod, "FailedPrepareDynamicResources", message)
            return False
        return True

    def _create_sandbox(self) -> PodSandbox:
        sandbox = self.deps.runtime.create_sandbox(self.pod, self.deps.facts.pod_network)
        now = self.deps.clock.now()
        sandbox.runs |= {known.name: (lost_run(known, now),) for known in self._known_running}
        return sandbox

    async def _set_up_volumes(self, sandbox: PodSandbox) -> bool:
        if not self.deps.runtime.runs_processes:
            return True
        try:
            await self.deps.builder.set_up_pod(sandbox)
        except ImexError as error:
            self.deps.events.warning(self.pod, "FailedMount", str(error))
            return False
        return True

    def _start_probes(self, sandbox: PodSandbox, group: asyncio.TaskGroup) -> Prober:
        if self._prober is None:
            enabled = self.deps.runtime.runs_processes
            self._prober = Prober(sandbox, self.deps.events, self.deps.clock, self.trigger, enabled=enabled)
            self._prober.start(group)
        return self._prober

    def _stop_probes(self) -> None:
        if self._prober is not None:
            self._prober.stop()

    async def _sync_containers(self, sandbox: PodSandbox, prober: Prober) -> float:
        failed = prober.failed()
        self._done = must_stop_pod(self.pod, failed, list(sandbox.running))
        if not self._done:
            for each in failed:
                await self._stop_failed(sandbox, each)
        if self._is_terminating():
            return 0.0
        now = self.deps.clock.now()
        actions = compute_pod_actions(self.pod.spec, sandbox.runs, now, prober.unstarted())
        all_created = await self._start_containers(actions, sandbox, prober)
        await self._write_status()
        self._done = actions.done
        if self._done:
            return 0.0
        if all_created and actions.next_start is not None:
            return max(0.0, (actions.next_start - now).total_seconds())
        return _jittered(RESYNC_PERIOD if all_created else RETRY_PERIOD)

    async def _stop_failed(self, sandbox: PodSandbox, failed: FailedProbe) -> None:
        name, override = failed.container.name, failed.probe.termination_grace_period_seconds
        self.deps.events.normal(self.pod, "Killing", killing_message(self.pod, failed), container=name)
        await sandbox.stop(lambda: grace_period(self.pod, override), self._updated, only=name)

    async def _start_containers(self, actions: PodActions, sandbox: PodSandbox, prober: Prober) -> bool:
        """Whether every container could be created."""
        created = [name for name in actions.start if await self._starter.start(self.pod, name, sandbox)]
        for name in created:
            prober.trigger_readiness(name)
        for name in actions.backing_off:
            message = f"Back-off restarting failed container {name} in pod {self.pod.full_name}"
            self.deps.events.warning(self.pod, "BackOff", message, container=name)
        return len(created) == len(actions.start)

    async def _terminate(self) -> float:
        """Stops containers, unprepares claims, reports the final status, deletes the pod: always in this order."""
        self._stop_probes()
        sandbox = self._sandbox()
        if sandbox is not None:
            for name in sandbox.running:
                self.deps.events.normal(self.pod, "Killing", f"Stopping container {name}", container=name)
            await sandbox.stop(lambda: grace_period(self.pod), self._updated)
        try:
            await self.deps.dra.unprepare(self.pod)
        except ImexError as error:
            await self._write_status()
            log.warning("cannot unprepare the claims of a pod", pod=str(key_of(self.pod)), error=str(error))
            return _jittered(RETRY_PERIOD)
        await self._write_status(terminated=True)
        if sandbox is not None:
            self.deps.runtime.remove_sandbox(self.pod.uid)
            self.deps.builder.clean_up_pod(sandbox)
        await self._confirm_deletion()
        self.deps.events.forget(self.pod)
        self.finished = self.removed.is_set() or is_deleting(self.pod)
        if not self.finished:
            # A completed pod stays until it is deleted.
            await self._updated.wait()
        return 0.0

    async def _confirm_deletion(self) -> None:
        if is_deleting(self.pod) and not self.removed.is_set():
            with suppress(NotFound):
                await self.deps.client.delete_now(PODS, self.pod)

    async def _write_status(self, *, terminated: bool = False) -> None:
        # The final status that a previous kubelet wrote is not overwritten: the runs are not known any more.
        completed_before = self.pod.status.phase in TERMINAL_PHASES and not self.status.written
        if self.removed.is_set() or completed_before:
            return
        written = await self.status.write(self.pod, self._state(terminated=terminated))
        # If the desired state changed meanwhile, the watch delivers it: `update` must see the difference.
        if written.desired_state == self.pod.desired_state:
            self.pod = written

    def _state(self, *, terminated: bool) -> PodState:
        sandbox = self._sandbox()
        if sandbox is not None:
            self._runs = sandbox.runs
        return PodState(
            now=self.deps.clock.now(),
            runs=self._runs,
            waiting=self._starter.waiting,
            devices=self.deps.dra.allocated_resources_status(self.pod),
            unstarted=frozenset(self._prober.unstarted() if self._prober else ()),
            unready=frozenset(self._prober.unready() if self._prober else ()),
            host_ip=self.deps.facts.address,
            pod_ip=sandbox.ip if sandbox else "",
            has_sandbox=sandbox is not None,
            terminated=terminated,
        )


def _jittered(seconds: float) -> float:
    return seconds * (1 + 0.5 * random_fraction())
