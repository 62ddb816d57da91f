"""One pod on its node: from its binding to its end, one step at a time.

A worker looks at what is wanted and at what runs, decides (`plan`), acts, tells (`status`), and sleeps until
something changes. It keeps nothing that it could not find again after a restart of the kubelet: containers are
the runtime's, claims the ledger's, everything else the API server's.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from imex_dra.api.meta import is_deleting, key_of
from imex_dra.base.chance import fraction
from imex_dra.base.errors import ImexError, NotFound
from imex_dra.base.waiting import first_of
from imex_dra.sandbox.kubelet.containers import Sandbox
from imex_dra.sandbox.kubelet.grace import grace
from imex_dra.sandbox.kubelet.parts import Parts
from imex_dra.sandbox.kubelet.plan import Plan, plan
from imex_dra.sandbox.kubelet.prober import Condemned, Prober, leaves_nothing, words_of_end
from imex_dra.sandbox.kubelet.reports import Reports
from imex_dra.sandbox.kubelet.runs import Runs, lost
from imex_dra.sandbox.kubelet.situation import Situation
from imex_dra.sandbox.kubelet.starter import Starter
from imex_dra.sandbox.kubelet.status import TERMINAL
from imex_dra.sandbox.kubelet.views.pod import PODS, Pod
from imex_dra.sandbox.kubelet.views.podstatus import ContainerStatus

log = structlog.get_logger()


@dataclass
class PodWorker:
    pod: Pod
    parts: Parts
    finished: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the API server does not know the pod any more."""
    _over: bool = False
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _happened: asyncio.Event = field(default_factory=asyncio.Event)
    _runs: Runs = field(default_factory=dict)
    """As they were told last: they outlive the sandbox."""
    _prober: Prober | None = None
    _ran: tuple[ContainerStatus, ...] = ()
    """What ran when we first heard of the pod, which our own words on it would cover."""

    def __post_init__(self) -> None:
        self.reports = Reports(self.parts.client)
        self._starter = Starter(self.parts)
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
        self._happened.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            await self._work(group)
            self._stop_probing()

    async def _work(self, group: asyncio.TaskGroup) -> None:
        while not self.finished:
            self._wanted.clear()
            self._happened.clear()
            try:
                again = await self._sync(group)
            except Exception as error:
                again = _jittered(self.parts.retry)
                surprise = None if isinstance(error, ImexError) else error
                log.warning(
                    "a pod could not be synced", pod=str(key_of(self.pod)), error=str(error), exc_info=surprise
                )
            if not self.finished:
                await first_of(self._wanted, self._happened, timeout=again)

    async def _sync(self, group: asyncio.TaskGroup) -> float:
        """Returns the seconds after which to look again."""
        if self._is_ending():
            return await self._end()
        sandbox = self._sandbox()
        if sandbox is None:
            await self._tell()
            if not await self._prepare():
                return _jittered(self.parts.resync)
            if self._is_ending():
                return 0.0
            sandbox = self._create()
        if not await self._mount(sandbox):
            return _jittered(self.parts.retry)
        return await self._drive(sandbox, self._probing(sandbox, group))

    def _is_ending(self) -> bool:
        return self._over or self.gone.is_set() or is_deleting(self.pod) or self.pod.status.phase in TERMINAL

    def _sandbox(self) -> Sandbox | None:
        return self.parts.runtime.sandboxes.get(self.pod.uid)

    async def _prepare(self) -> bool:
        try:
            await self.parts.claims.prepare(self.pod)
        except ImexError as error:
            words = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
            self.parts.events.warn(self.pod, "FailedPrepareDynamicResources", words)
            return False
        return True

    def _create(self) -> Sandbox:
        sandbox = self.parts.runtime.create(self.pod, self.parts.facts.pod_network)
        now = self.parts.clock.now()
        sandbox.runs |= {known.name: (lost(known, now),) for known in self._ran}
        return sandbox

    async def _mount(self, sandbox: Sandbox) -> bool:
        if not self.parts.runtime.has_inside:
            return True
        try:
            await self.parts.desk.set_up(sandbox)
        except ImexError as error:
            self.parts.events.warn(self.pod, "FailedMount", str(error))
            return False
        return True

    def _probing(self, sandbox: Sandbox, group: asyncio.TaskGroup) -> Prober:
        if self._prober is None:
            asks = self.parts.runtime.has_inside
            self._prober = Prober(sandbox, self.parts.events, self.parts.clock, self.look_again, asks=asks)
            self._prober.begin(group)
        return self._prober

    def _stop_probing(self) -> None:
        if self._prober is not None:
            self._prober.end()

    async def _drive(self, sandbox: Sandbox, prober: Prober) -> float:
        condemned = prober.condemned()
        self._over = leaves_nothing(self.pod, condemned, list(sandbox.tasks))
        if not self._over:
            for each in condemned:
                await self._stop_condemned(sandbox, each)
        if self._is_ending():
            return 0.0
        now = self.parts.clock.now()
        chosen = plan(self.pod.spec, sandbox.runs, now, prober.unstarted())
        all_made = await self._start(chosen, sandbox, prober)
        await self._tell()
        self._over = chosen.over
        if self._over:
            return 0.0
        if all_made and chosen.wake is not None:
            return max(0.0, (chosen.wake - now).total_seconds())
        return _jittered(self.parts.resync if all_made else self.parts.retry)

    async def _stop_condemned(self, sandbox: Sandbox, condemned: Condemned) -> None:
        name, given = condemned.container.name, condemned.probe.termination_grace_period_seconds
        self.parts.events.note(self.pod, "Killing", words_of_end(self.pod, condemned), container=name)
        await sandbox.stop(lambda: grace(self.pod, given), self._wanted, only=name)

    async def _start(self, chosen: Plan, sandbox: Sandbox, prober: Prober) -> bool:
        """Whether all that were chosen could be made."""
        made = [name for name in chosen.start if await self._starter.start(self.pod, name, sandbox)]
        for name in made:
            prober.nudge(name)
        for name in chosen.held:
            words = f"Back-off restarting failed container {name} in pod {self.pod.full_name}"
            self.parts.events.warn(self.pod, "BackOff", words, container=name)
        return len(made) == len(chosen.start)

    async def _end(self) -> float:
        self._stop_probing()
        sandbox = self._sandbox()
        if sandbox is not None:
            for name in sandbox.tasks:
                self.parts.events.note(self.pod, "Killing", f"Stopping container {name}", container=name)
            await sandbox.stop(lambda: grace(self.pod), self._wanted)
        try:
            await self.parts.claims.unprepare(self.pod)
        except ImexError as error:
            await self._tell()
            log.warning("a pod's claims were not unprepared", pod=str(key_of(self.pod)), error=str(error))
            return _jittered(self.parts.retry)
        await self._tell(ended=True)
        if sandbox is not None:
            self.parts.runtime.remove(self.pod.uid)
            self.parts.desk.clear(sandbox)
        await self._delete()
        self.parts.events.forget(self.pod)
        self.finished = self.gone.is_set() or is_deleting(self.pod)
        if not self.finished:
            await self._wanted.wait()
        return 0.0

    async def _delete(self) -> None:
        if is_deleting(self.pod) and not self.gone.is_set():
            with suppress(NotFound):
                await self.parts.client.delete_now(PODS, self.pod)

    async def _tell(self, *, ended: bool = False) -> None:
        """Writes the status if it says something new."""
        if self.gone.is_set() or (self.pod.status.phase in TERMINAL and not self.reports.told):
            return
        written = await self.reports.write(self.pod, self._situation(ended))
        if written.wish == self.pod.wish:
            self.pod = written

    def _situation(self, ended: bool) -> Situation:
        sandbox = self._sandbox()
        if sandbox is not None:
            self._runs = sandbox.runs
        return Situation(
            now=self.parts.clock.now(),
            runs=self._runs,
            waiting=self._starter.waiting,
            devices=self.parts.devices(self.pod),
            unstarted=frozenset(self._prober.unstarted() if self._prober else ()),
            unready=frozenset(self._prober.unready() if self._prober else ()),
            host_ip=self.parts.facts.address,
            pod_ip=sandbox.address if sandbox else "",
            sandbox=sandbox is not None,
            ended=ended,
        )


def _jittered(seconds: float) -> float:
    return seconds * (1 + 0.5 * fraction())
