"""One pod on its node: from its binding to its end, one step at a time.

A worker looks at what is wanted and at what runs, decides (`plan`), acts, tells (`status`), and sleeps until
something changes. It keeps nothing that it could not find again after a restart of the kubelet: containers are
the runtime's, claims the ledger's, everything else the API server's.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from imex_dra.api.meta import is_deleting, key_of
from imex_dra.base.errors import ImexError, NotFound
from imex_dra.base.waiting import first_of
from imex_dra.sandbox.kubelet.containers import Sandbox
from imex_dra.sandbox.kubelet.environment import ConfigError
from imex_dra.sandbox.kubelet.plan import plan
from imex_dra.sandbox.kubelet.prober import Condemned, Prober, leaves_nothing, words_of_end
from imex_dra.sandbox.kubelet.reports import Reports
from imex_dra.sandbox.kubelet.runs import End, Run, Runs, StartFailed, Waiting
from imex_dra.sandbox.kubelet.status import TERMINAL, Situation
from imex_dra.sandbox.kubelet.views.pod import PODS, Pod
from imex_dra.sandbox.kubelet.views.podstatus import ContainerStatus
from imex_dra.sandbox.kubelet.ward import Ward

log = structlog.get_logger()

SHORTEST_GRACE = 2.0


@dataclass
class PodWorker:
    pod: Pod
    ward: Ward
    finished: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the API server does not know the pod any more."""
    _over: bool = False
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: dict[str, Waiting] = field(default_factory=dict)
    _runs: Runs = field(default_factory=dict)
    _prober: Prober | None = None
    _ran: tuple[ContainerStatus, ...] = ()
    """What ran when we first heard of the pod, which our own words on it would cover."""

    def __post_init__(self) -> None:
        self.reports = Reports(self.ward.client)
        self._ran = tuple(known for known in self.pod.status.container_statuses if known.state.running is not None)

    def update(self, pod: Pod) -> None:
        changed = pod.wish != self.pod.wish
        self.pod = pod
        if changed:
            self._wanted.set()

    def vanish(self) -> None:
        """Nobody knows the pod any more: end it without telling."""
        self.gone.set()
        self._wanted.set()

    def look_again(self) -> None:
        """Something happened on the node: a container ended, a device is told to be ill."""
        self._ended.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            await self._work(group)
            self._stop_probing()

    async def _work(self, group: asyncio.TaskGroup) -> None:
        while not self.finished:
            self._wanted.clear()
            self._ended.clear()
            try:
                again = await self._sync(group)
            except Exception as error:
                again = _jittered(self.ward.retry)
                surprise = None if isinstance(error, ImexError) else error
                log.warning(
                    "a pod could not be synced", pod=str(key_of(self.pod)), error=str(error), exc_info=surprise
                )
            if not self.finished:
                await first_of(self._wanted, self._ended, timeout=again)

    async def _sync(self, group: asyncio.TaskGroup) -> float:
        """Returns the seconds after which to look again."""
        if self._is_ending():
            return await self._end()
        sandbox = self.ward.runtime.sandboxes.get(self.pod.uid)
        if sandbox is None:
            await self._tell()
            if not await self._prepare():
                return _jittered(self.ward.resync)
            if self._is_ending():
                return 0.0
            sandbox = self._create()
        if not await self._mount(sandbox):
            return _jittered(self.ward.retry)
        self._runs = sandbox.runs
        return await self._drive(sandbox, self._probing(sandbox, group))

    def _is_ending(self) -> bool:
        return self._over or self.gone.is_set() or is_deleting(self.pod) or self.pod.status.phase in TERMINAL

    async def _prepare(self) -> bool:
        try:
            await self.ward.claims.prepare(self.pod)
        except ImexError as error:
            words = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
            self.ward.events.warn(self.pod, "FailedPrepareDynamicResources", words)
            return False
        return True

    async def _mount(self, sandbox: Sandbox) -> bool:
        if not self.ward.runtime.has_inside:
            return True
        try:
            await self.ward.desk.set_up(sandbox)
        except ImexError as error:
            self.ward.events.warn(self.pod, "FailedMount", str(error))
            return False
        return True

    def _create(self) -> Sandbox:
        """What the API server calls running but no runtime knows was lost, with the machine perhaps."""
        sandbox = self.ward.runtime.create(self.pod, self.ward.facts.pod_network)
        for known in self._ran:
            now = self.ward.clock.now()
            words = "The container could not be located when the pod was terminated"
            end = End(137, now, words, "ContainerStatusUnknown")
            sandbox.runs[known.name] = (Run(known.container_id, known.restart_count, now, end),)
        return sandbox

    def _probing(self, sandbox: Sandbox, group: asyncio.TaskGroup) -> Prober:
        if self._prober is None:
            asks = self.ward.runtime.has_inside
            self._prober = Prober(sandbox, self.ward.events, self.ward.clock, self._ended.set, asks=asks)
            self._prober.begin(group)
        return self._prober

    def _stop_probing(self) -> None:
        if self._prober is not None:
            self._prober.end()

    async def _drive(self, sandbox: Sandbox, prober: Prober) -> float:
        condemned = prober.condemned()
        if leaves_nothing(self.pod, condemned, list(sandbox.tasks)):
            self._over = True
            return 0.0
        for each in condemned:
            await self._condemn(sandbox, each)
        if self._is_ending():
            return 0.0
        now = self.ward.clock.now()
        chosen = plan(self.pod.spec, sandbox.runs, now, prober.unstarted())
        failed = [name for name in chosen.start if not await self._start(sandbox, name)]
        for name in chosen.held:
            words = f"Back-off restarting failed container {name} in pod {self.pod.full_name}"
            self.ward.events.warn(self.pod, "BackOff", words, container=name)
        await self._tell()
        if chosen.over:
            self._over = True
            return 0.0
        if failed:
            return _jittered(self.ward.retry)
        if chosen.wake is not None:
            return max(0.0, (chosen.wake - now).total_seconds())
        return _jittered(self.ward.resync)

    async def _start(self, sandbox: Sandbox, name: str) -> bool:
        container = next(c for c in self.pod.spec.every_container if c.name == name)
        events = self.ward.events
        try:
            order = await self.ward.desk.order(self.pod, container, sandbox)
            events.note(self.pod, "Created", "Container created", container=name)
            await self.ward.runtime.start(sandbox, order)
        except StartFailed as error:
            events.warn(self.pod, "Failed", f"Error: {error}", container=name)
            self._ended.set()
            return True
        except ImexError as error:
            reason = "CreateContainerConfigError" if isinstance(error, ConfigError) else "CreateContainerError"
            self._waiting[name] = Waiting(reason, str(error))
            events.warn(self.pod, "Failed", f"Error: {error}", container=name)
            return False
        self._waiting.pop(name, None)
        events.note(self.pod, "Started", "Container started", container=name)
        if self._prober is not None:
            self._prober.nudge(name)
        return True

    async def _condemn(self, sandbox: Sandbox, condemned: Condemned) -> None:
        name, given = condemned.container.name, condemned.probe.termination_grace_period_seconds
        self.ward.events.note(self.pod, "Killing", words_of_end(self.pod, condemned), container=name)
        await sandbox.stop(lambda: self._grace(given), self._wanted, only=name)

    async def _end(self) -> float:
        self._stop_probing()
        sandbox = self.ward.runtime.sandboxes.get(self.pod.uid)
        if sandbox is not None:
            self._runs = sandbox.runs
            for name in sandbox.tasks:
                self.ward.events.note(self.pod, "Killing", f"Stopping container {name}", container=name)
            await sandbox.stop(self._grace, self._wanted)
        try:
            await self.ward.claims.unprepare(self.pod)
        except ImexError as error:
            await self._tell()
            log.warning("a pod's claims were not unprepared", pod=str(key_of(self.pod)), error=str(error))
            return _jittered(self.ward.retry)
        await self._tell(ended=True)
        if sandbox is not None:
            self.ward.runtime.remove(self.pod.uid)
            self.ward.desk.clear(sandbox)
        await self._delete()
        self.ward.events.forget(self.pod)
        self.finished = self.gone.is_set() or is_deleting(self.pod)
        if not self.finished:
            await self._wanted.wait()
        return 0.0

    def _grace(self, given: int | None = None) -> float:
        """May get shorter while the containers are ending, if the pod is deleted."""
        if is_deleting(self.pod) and self.pod.metadata.deletion_grace_period_seconds is not None:
            given = self.pod.metadata.deletion_grace_period_seconds
        return max(SHORTEST_GRACE, self.pod.spec.termination_grace_period_seconds if given is None else given)

    async def _delete(self) -> None:
        if is_deleting(self.pod) and not self.gone.is_set():
            with suppress(NotFound):
                await self.ward.client.delete_now(PODS, self.pod)

    async def _tell(self, *, ended: bool = False) -> None:
        """Writes the status if it says something new."""
        if self.gone.is_set() or (self.pod.status.phase in TERMINAL and not self.reports.told):
            return
        sandbox = self.ward.runtime.sandboxes.get(self.pod.uid)
        situation = Situation(
            now=self.ward.clock.now(),
            runs=self._runs,
            waiting=self._waiting,
            devices=self.ward.devices(self.pod),
            unstarted=frozenset(self._prober.unstarted() if self._prober else ()),
            unready=frozenset(self._prober.unready() if self._prober else ()),
            host_ip=self.ward.facts.address,
            pod_ip=sandbox.address if sandbox else "",
            sandbox=sandbox is not None,
            ended=ended,
        )
        written = await self.reports.write(self.pod, situation)
        if written.wish == self.pod.wish:
            self.pod = written


def _jittered(seconds: float) -> float:
    return seconds * (1 + 0.5 * random.random())
