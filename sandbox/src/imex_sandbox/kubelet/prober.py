"""All probes of one pod, and the containers that must be stopped because a probe failed."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from imex_dra.base.clock import Clock
from imex_sandbox.kubelet.events import EventRecorder
from imex_sandbox.kubelet.podstate import ContainerRun, is_running, latest_run
from imex_sandbox.kubelet.probeworker import ProbeType, ProbeWorker
from imex_sandbox.kubelet.runtime import PodSandbox, RunningContainer
from imex_sandbox.kubelet.views.pod import Container, Pod, Probe


class FailedProbe(NamedTuple):
    """A startup or liveness probe whose failure requires its container to be stopped."""

    container: Container
    kind: ProbeType
    probe: Probe


class Prober:
    """`enabled` is false for hollow containers, which count as started, ready and alive."""

    def __init__(
        self,
        sandbox: PodSandbox,
        events: EventRecorder,
        clock: Clock,
        on_change: Callable[[], None],
        *,
        enabled: bool,
    ) -> None:
        self._sandbox = sandbox
        self._events = events
        self._clock = clock
        self._on_change = on_change
        self._workers = {
            (container.name, kind): self._worker(container, kind, probe)
            for container in sandbox.pod.spec.all_containers
            for kind, probe in (probes_of(container) if enabled else {}).items()
        }
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, group: asyncio.TaskGroup) -> None:
        self._tasks = [group.create_task(worker.run()) for worker in self._workers.values()]
        for container in self._sandbox.running:
            self.trigger_readiness(container)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def trigger_readiness(self, container: str) -> None:
        """A container that has just started is probed for readiness at once; other probes wait for a period."""
        if worker := self._workers.get((container, ProbeType.READINESS)):
            worker.trigger.set()

    def unstarted(self) -> set[str]:
        return self._without_success(ProbeType.STARTUP)

    def unready(self) -> set[str]:
        return self._without_success(ProbeType.READINESS)

    def failed(self) -> list[FailedProbe]:
        return [
            FailedProbe(worker.container, kind, worker.probe)
            for (name, kind), worker in self._workers.items()
            if kind is not ProbeType.READINESS and is_running(self._sandbox.runs, name)
            if worker.verdict(latest_run(self._sandbox.runs, name)) is False
        ]

    def _without_success(self, kind: ProbeType) -> set[str]:
        """Containers that have a probe of this type which has not succeeded."""
        workers = ((name, worker) for (name, each), worker in self._workers.items() if each is kind)
        return {name for name, worker in workers if not worker.verdict(latest_run(self._sandbox.runs, name))}

    def _worker(self, container: Container, kind: ProbeType, probe: Probe) -> ProbeWorker:
        name, pod = container.name, self._sandbox.pod

        def find() -> tuple[ContainerRun | None, RunningContainer | None]:
            return latest_run(self._sandbox.runs, name), self._sandbox.running.get(name)

        def on_verdict() -> None:
            if kind is ProbeType.STARTUP:
                self.trigger_readiness(name)
            self._on_change()

        return ProbeWorker(
            container,
            kind,
            probe,
            find=find,
            has_started=lambda: name not in self.unstarted(),
            now=self._clock.now,
            on_failure=lambda message: self._events.warning(pod, "Unhealthy", message, container=name),
            on_verdict=on_verdict,
            known=pod.status.container(name),
        )


def probes_of(container: Container) -> dict[ProbeType, Probe]:
    probes = {
        ProbeType.STARTUP: container.startup_probe,
        ProbeType.READINESS: container.readiness_probe,
        ProbeType.LIVENESS: container.liveness_probe,
    }
    return {kind: probe for kind, probe in probes.items() if probe is not None}


def killing_message(pod: Pod, failed: FailedProbe) -> str:
    """The message of the real kubelet's Event `Killing`."""
    reason = f"Container {failed.container.name} failed {failed.kind.lower()} probe"
    return f"{reason}, will be restarted" if _will_restart(pod, failed) else reason


def must_stop_pod(pod: Pod, failed: list[FailedProbe], running: list[str]) -> bool:
    """Whether no container is left once those that failed for good are stopped."""
    stopping = {each.container.name for each in failed if not _will_restart(pod, each)}
    return bool(stopping) and stopping.issuperset(running)


def _will_restart(pod: Pod, failed: FailedProbe) -> bool:
    return (failed.container.restart_policy or pod.spec.restart_policy) != "Never"
