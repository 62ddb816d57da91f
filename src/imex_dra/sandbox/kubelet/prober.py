"""All probes of one pod, and what follows from them."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from imex_dra.base.clock import Clock
from imex_dra.sandbox.kubelet.containers import Sandbox, Task
from imex_dra.sandbox.kubelet.events import Events
from imex_dra.sandbox.kubelet.probes import Kind, Watch
from imex_dra.sandbox.kubelet.runs import Run, is_running, latest
from imex_dra.sandbox.kubelet.views.container import Container, Probe
from imex_dra.sandbox.kubelet.views.pod import Pod


class Condemned(NamedTuple):
    """A container that must be stopped, and why."""

    container: Container
    kind: Kind
    probe: Probe


class Prober:
    """One that does not ask finds everything in order: hollow containers are what their script says."""

    def __init__(
        self, sandbox: Sandbox, events: Events, clock: Clock, wake: Callable[[], None], *, asks: bool = True
    ) -> None:
        self._sandbox = sandbox
        self._events = events
        self._clock = clock
        self._wake = wake
        self._watches = {
            (container.name, kind): self._watch(container, kind, probe)
            for container in sandbox.pod.spec.every_container
            for kind, probe in (asked_of(container) if asks else {}).items()
        }
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, group: asyncio.TaskGroup) -> None:
        self._tasks = [group.create_task(watch.run()) for watch in self._watches.values()]
        for container in self._sandbox.tasks:
            self.nudge(container)

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    def nudge(self, container: str) -> None:
        """Readiness is asked for as soon as there is somebody to ask; the others have their turn."""
        if watch := self._watches.get((container, Kind.READINESS)):
            watch.nudge.set()

    def unstarted(self) -> set[str]:
        return self._without(Kind.STARTUP)

    def unready(self) -> set[str]:
        return self._without(Kind.READINESS)

    def condemned(self) -> list[Condemned]:
        return [
            Condemned(watch.container, kind, watch.probe)
            for (name, kind), watch in self._watches.items()
            if kind is not Kind.READINESS and is_running(self._sandbox.runs, name)
            if watch.verdict_of(latest(self._sandbox.runs, name)) is False
        ]

    def _without(self, kind: Kind) -> set[str]:
        """Containers of which a probe has yet to say yes."""
        watches = ((name, watch) for (name, of), watch in self._watches.items() if of is kind)
        return {name for name, watch in watches if not watch.verdict_of(latest(self._sandbox.runs, name))}

    def _watch(self, container: Container, kind: Kind, probe: Probe) -> Watch:
        name, pod = container.name, self._sandbox.pod

        def look() -> tuple[Run | None, Task | None]:
            return latest(self._sandbox.runs, name), self._sandbox.tasks.get(name)

        def verdict() -> None:
            if kind is Kind.STARTUP:
                self.nudge(name)
            self._wake()

        return Watch(
            container,
            kind,
            probe,
            look=look,
            may_ask=lambda: name not in self.unstarted(),
            now=self._clock.now,
            on_failure=lambda words: self._events.warn(pod, "Unhealthy", words, container=name),
            on_verdict=verdict,
            known=pod.status.of(name),
        )


def asked_of(container: Container) -> dict[Kind, Probe]:
    every = {
        Kind.STARTUP: container.startup_probe,
        Kind.READINESS: container.readiness_probe,
        Kind.LIVENESS: container.liveness_probe,
    }
    return {kind: probe for kind, probe in every.items() if probe is not None}


def words_of_end(pod: Pod, condemned: Condemned) -> str:
    """Why a container is stopped, as the real kubelet says it."""
    reason = f"Container {condemned.container.name} failed {condemned.kind.lower()} probe"
    return f"{reason}, will be restarted" if _restarts(pod, condemned) else reason


def leaves_nothing(pod: Pod, condemned: list[Condemned], running: list[str]) -> bool:
    """Then the pod as a whole is stopped, as if it were over."""
    names = {each.container.name for each in condemned if not _restarts(pod, each)}
    return bool(names) and names.issuperset(running)


def _restarts(pod: Pod, condemned: Condemned) -> bool:
    return (condemned.container.restart_policy or pod.spec.restart_policy) != "Never"
