"""Whether a container has started, is ready, is alive: asked by running a command in it, again and again.

One `Watch` per probe, for as long as its pod is wanted. Results count from the thresholds on (`Course`), and only
for the run that was asked: the next begins anew. The others wait until the startup probe has succeeded once.

Ways to ask that need a network of the pod's own (HTTP, TCP, gRPC) don't exist here: they are told as probes that
can't be made, and such a container does not become ready.
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
from imex_dra.base.waiting import first_of
from imex_dra.sandbox.kubelet.commands import Command
from imex_dra.sandbox.kubelet.containers import Task
from imex_dra.sandbox.kubelet.runs import Run
from imex_dra.sandbox.kubelet.views.container import Container, Probe
from imex_dra.sandbox.kubelet.views.podstatus import ContainerStatus

log = structlog.get_logger()

_MOST_OUTPUT = 10 * 1024


class Kind(StrEnum):
    STARTUP = "Startup"
    READINESS = "Readiness"
    LIVENESS = "Liveness"


class Course(Struct, frozen=True):
    """What came of asking one run of a container so far."""

    run: str = ""
    verdict: bool | None = None
    """None until enough results agree."""
    last: bool | None = None
    times: int = 0

    def heard(self, probe: Probe, result: bool) -> "Course":
        times = self.times + 1 if result == self.last else 1
        enough = times >= (probe.success_threshold if result else probe.failure_threshold)
        return structs.replace(self, verdict=result if enough else self.verdict, last=result, times=times)


def first_course(kind: Kind, run: Run, known: ContainerStatus | None) -> Course:
    """A kubelet that starts anew goes on with what was told of a run."""
    if known is None or known.container_id != run.id:
        return Course(run.id)
    told = {Kind.STARTUP: known.started, Kind.READINESS: known.ready, Kind.LIVENESS: None}[kind]
    return Course(run.id, verdict=told or None)


def is_settled(kind: Kind, course: Course) -> bool:
    """Nothing more is asked of this run."""
    if kind is Kind.STARTUP:
        return course.verdict is not None
    return kind is Kind.LIVENESS and course.verdict is False


class Answer(NamedTuple):
    """`result` is None if the question itself failed, which counts for nothing."""

    result: bool | None
    words: str = ""


async def ask(task: Task, probe: Probe) -> Answer:
    if probe.exec is None:
        asked = {"httpGet": probe.http_get, "tcpSocket": probe.tcp_socket, "grpc": probe.grpc}
        how = next((name for name, way in asked.items() if way), "nothing")
        return Answer(None, f"only exec probes are made on simulated nodes, whose pods have no network; not {how}")
    try:
        execution = await task.enter(Command(probe.exec.command))
    except ImexError as error:
        return Answer(None, f"rpc error: code = Unknown desc = {error}")
    assert execution.err is not None
    try:
        async with asyncio.timeout(probe.timeout_seconds):
            output = b"".join(await asyncio.gather(execution.out.read(), execution.err.read()))
            code = await execution.wait()
    except TimeoutError:
        line = " ".join(probe.exec.command)
        return Answer(False, f'command timed out: "{line}" timed out after {probe.timeout_seconds}s')
    finally:
        execution.end()
    return Answer(code == 0, output[:_MOST_OUTPUT].decode(errors="replace"))


Look = Callable[[], tuple[Run | None, Task | None]]
"""The container's latest run, and the container if it runs."""


@dataclass(eq=False)
class Watch:
    container: Container
    kind: Kind
    probe: Probe
    look: Look
    may_ask: Callable[[], bool]
    """Whether the container has started, as far as that is asked apart."""
    now: Callable[[], datetime]
    on_failure: Callable[[str], None]
    """Told the words of an Event."""
    on_verdict: Callable[[], None]
    known: ContainerStatus | None = None
    course: Course = field(default_factory=Course)
    nudge: asyncio.Event = field(default_factory=asyncio.Event)
    """Ask now, not only at the next turn."""
    ask: Callable[[Task, Probe], Awaitable[Answer]] = ask

    async def run(self) -> NoReturn:
        while True:
            await first_of(self.nudge, timeout=self.probe.period_seconds)
            self.nudge.clear()
            try:
                await self.turn()
            except OSError as error:
                log.warning("a probe could not be made", container=self.container.name, error=str(error))

    async def turn(self) -> None:
        run, task = self.look()
        if run is None or task is None:
            return
        if run.id != self.course.run:
            self.course = first_course(self.kind, run, self.known)
        if self._is_due(run):
            answer = await self.ask(task, self.probe)
            if self.look()[0] == run:
                self._take(answer)

    def verdict_of(self, run: Run | None) -> bool | None:
        return self.course.verdict if run is not None and run.id == self.course.run else None

    def _is_due(self, run: Run) -> bool:
        if int((self.now() - run.started).total_seconds()) < self.probe.initial_delay_seconds:
            return False
        return not is_settled(self.kind, self.course) and (self.kind is Kind.STARTUP or self.may_ask())

    def _take(self, answer: Answer) -> None:
        if answer.result is None:
            self.on_failure(f"{self.kind} probe errored and resulted in unknown state: {answer.words}")
            return
        if not answer.result:
            self.on_failure(f"{self.kind} probe failed: {answer.words}")
        before = self.course.verdict
        self.course = self.course.heard(self.probe, answer.result)
        if self.course.verdict != before:
            self.on_verdict()
