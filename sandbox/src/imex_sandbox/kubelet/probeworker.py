"""One probe of one container: executes its command once per period and counts the results.

Results count from the thresholds on (`ProbeResults`), and only for the container run that was probed: the next run
starts from nothing. Readiness and liveness probes wait until the startup probe has succeeded.

Probes that need a pod network (HTTP, TCP, gRPC) are not supported: each attempt is reported as an error in an
Event, and the container does not become ready.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, NoReturn

import structlog
from msgspec import Struct, structs

from imex_dra.base.errors import ImexError
from imex_dra.base.waiting import wait_any
from imex_sandbox.kubelet.containerexec import ExecCommand
from imex_sandbox.kubelet.podstate import ContainerRun
from imex_sandbox.kubelet.runtime import RunningContainer
from imex_sandbox.kubelet.views.pod import Container, ContainerStatus, Probe

log = structlog.get_logger()

_MAX_OUTPUT = 10 * 1024


class ProbeType(StrEnum):
    STARTUP = "Startup"
    READINESS = "Readiness"
    LIVENESS = "Liveness"


class ProbeResults(Struct, frozen=True):
    """The results for one run of a container."""

    run_id: str = ""
    verdict: bool | None = None
    """None until enough consecutive results agree."""
    last: bool | None = None
    consecutive: int = 0

    def add(self, probe: Probe, success: bool) -> "ProbeResults":
        consecutive = self.consecutive + 1 if success == self.last else 1
        threshold = probe.success_threshold if success else probe.failure_threshold
        verdict = success if consecutive >= threshold else self.verdict
        return structs.replace(self, verdict=verdict, last=success, consecutive=consecutive)


def initial_results(kind: ProbeType, run: ContainerRun, known: ContainerStatus | None) -> ProbeResults:
    """`known` is the status that a previous kubelet wrote; a restarted kubelet continues from it."""
    if known is None or known.container_id != run.id:
        return ProbeResults(run.id)
    verdict = {
        ProbeType.STARTUP: known.started,
        ProbeType.READINESS: known.ready,
        ProbeType.LIVENESS: None,
    }[kind]
    return ProbeResults(run.id, verdict=verdict or None)


def is_final(kind: ProbeType, results: ProbeResults) -> bool:
    """Whether this run is not probed any more."""
    if kind is ProbeType.STARTUP:
        return results.verdict is not None
    return kind is ProbeType.LIVENESS and results.verdict is False


class ProbeResult(NamedTuple):
    """`success` is None if the probe could not be executed, which counts neither way."""

    success: bool | None
    output: str = ""


async def execute_probe(container: RunningContainer, probe: Probe) -> ProbeResult:
    if probe.exec is None:
        handlers = {"httpGet": probe.http_get, "tcpSocket": probe.tcp_socket, "grpc": probe.grpc}
        used = next((name for name, handler in handlers.items() if handler), "no handler")
        return ProbeResult(None, f"simulated pods have no network: use an exec probe instead of {used}")
    try:
        session = await container.exec(ExecCommand(probe.exec.command))
    except ImexError as error:
        return ProbeResult(None, f"rpc error: code = Unknown desc = {error}")
    assert session.stderr is not None
    try:
        async with asyncio.timeout(probe.timeout_seconds):
            output = b"".join(await asyncio.gather(session.stdout.read(), session.stderr.read()))
            code = await session.wait()
    except TimeoutError:
        command = " ".join(probe.exec.command)
        return ProbeResult(False, f'command timed out: "{command}" timed out after {probe.timeout_seconds}s')
    finally:
        session.close()
    return ProbeResult(code == 0, output[:_MAX_OUTPUT].decode(errors="replace"))


@dataclass(eq=False)
class ProbeWorker:
    container: Container
    kind: ProbeType
    probe: Probe
    find: Callable[[], tuple[ContainerRun | None, RunningContainer | None]]
    """The latest run of the container, and the container itself if it is running."""
    has_started: Callable[[], bool]
    """Whether the startup probe, if there is one, has succeeded."""
    now: Callable[[], datetime]
    on_failure: Callable[[str], None]
    """Called with the message of an Event."""
    on_verdict: Callable[[], None]
    known: ContainerStatus | None = None
    results: ProbeResults = field(default_factory=ProbeResults)
    trigger: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to probe now instead of at the end of the period."""
    execute: Callable[[RunningContainer, Probe], Awaitable[ProbeResult]] = execute_probe

    async def run(self) -> NoReturn:
        while True:
            await wait_any(self.trigger, timeout=self.probe.period_seconds)
            self.trigger.clear()
            try:
                await self._probe()
            except OSError as error:
                log.warning("cannot execute a probe", container=self.container.name, error=str(error))

    async def _probe(self) -> None:
        run, container = self.find()
        if run is None or container is None:
            return
        if run.id != self.results.run_id:
            self.results = initial_results(self.kind, run, self.known)
        if self._is_due(run):
            result = await self.execute(container, self.probe)
            # The container may have been restarted meanwhile: the result says nothing about the new run.
            if self.find()[0] == run:
                self._add(result)

    def verdict(self, run: ContainerRun | None) -> bool | None:
        return self.results.verdict if run is not None and run.id == self.results.run_id else None

    def _is_due(self, run: ContainerRun) -> bool:
        if int((self.now() - run.started_at).total_seconds()) < self.probe.initial_delay_seconds:
            return False
        return not is_final(self.kind, self.results) and (self.kind is ProbeType.STARTUP or self.has_started())

    def _add(self, result: ProbeResult) -> None:
        if result.success is None:
            self.on_failure(f"{self.kind} probe errored and resulted in unknown state: {result.output}")
            return
        if not result.success:
            self.on_failure(f"{self.kind} probe failed: {result.output}")
        before = self.results.verdict
        self.results = self.results.add(self.probe, result.success)
        if self.results.verdict != before:
            self.on_verdict()
