"""One seed: a cluster, faults for a while, then rest, then everything must be as it should."""

import asyncio
import gc
import logging
import random
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import chdir
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from structlog.typing import EventDict

from imex_dra.controller import epochs
from imex_dra.kube.backoff import use_generator
from imex_sandbox.simulation.cluster import Shape, SimulatedCluster
from imex_sandbox.simulation.facts import Facts
from imex_sandbox.simulation.invariants import Invariants, Violation
from imex_sandbox.simulation.loop import VirtualLoop
from imex_sandbox.simulation.process import Killed, killable_files
from imex_sandbox.simulation.refusals import Refusals
from imex_sandbox.simulation.rest import problems_at_rest
from imex_sandbox.simulation.workload import Workload, plan_steps

HOUR = 3600.0
DAY = 86400.0
_WARM_UP = 120.0
_MEAN_PAUSES = (60.0, 120.0, 300.0, 600.0)
"""Seconds between two operations: busy clusters, and others in which faults have time to develop."""
_REST = 1800.0
_SHAPES = (Shape(1, 3, 8), Shape(1, 4, 12), Shape(1, 6, 9), Shape(2, 3, 8), Shape(2, 3, 5), Shape(1, 4, 4))


class Story(NamedTuple):
    """What to run. The same story always runs in the same way."""

    seed: int
    duration: float
    """Virtual seconds."""
    only: frozenset[int] | None = None
    """Numbers of the steps to run; None for all."""
    pause: float = 0.0
    """Mean seconds between two steps; 0: drawn from the seed."""


class Outcome(NamedTuple):
    story: Story
    name: str
    """Of what was violated; empty if nothing was."""
    problem: str
    virtual_seconds: float
    steps: tuple[int, ...]
    """Numbers of the steps that did something."""
    events: int
    """Steps of the event loop."""
    digest: str
    """Two runs with the same digest were the same."""
    seconds: float


def simulate(story: Story, tell: Callable[[str], object] | None = None) -> Outcome:
    began = time.monotonic()
    # Coroutines and tasks refer to each other in cycles; looking for them so often would cost a fifth of the time.
    gc.set_threshold(50_000, 20, 100)
    loop = VirtualLoop()
    try:
        # Relative paths: messages name files, and must be the same in every run.
        with tempfile.TemporaryDirectory(dir=_fast_directory()) as directory, chdir(directory), killable_files():
            run = Run(story, tell, loop)
            try:
                loop.run_until_complete(run.run(Path()))
            except Exception as error:
                run.name, run.problem = type(error).__name__, f"after {loop.time():.1f} s: {_flat(error)}"
    finally:
        loop.close()
    seconds = time.monotonic() - began
    return Outcome(story, run.name, run.problem, loop.time(), tuple(run.steps), loop.steps, run.digest, seconds)


class Run:
    def __init__(self, story: Story, tell: Callable[[str], object] | None, loop: VirtualLoop) -> None:
        self._story = story
        self._loop = loop
        self._seed = str(story.seed)
        use_generator(random.Random(f"{self._seed}/driver"))
        self._tell = tell or (lambda line: None)
        self.name = ""
        self.problem = ""
        self.steps: list[int] = []
        self.digest = ""
        self._failed = asyncio.Event()

    async def run(self, directory: Path) -> None:
        self._loop.set_exception_handler(self._on_unexpected_error)
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
            processors=[self._fail_at_unexpected_error],
        )
        # Members are asked early in half of the clusters: there are more races then.
        epochs.PATIENCE = random.Random(f"{self._seed}/patience").choice((60.0, 2.0))
        shape = random.Random(f"{self._seed}/shape").choice(_SHAPES)
        cluster = SimulatedCluster(self._seed, directory, shape)
        sweep_period = random.Random(f"{self._seed}/sweep").choice((300.0, 300.0, 60.0))
        for node in cluster.nodes.values():
            node.sweep_period = sweep_period
        invariants, facts = Invariants(cluster), Facts(cluster)
        refusals = Refusals(cluster, facts)
        for kubelet in cluster.kubelets.values():
            kubelet.on_refusal = partial(self._check, refusals.check)
        cluster.on_step = partial(self._check, invariants.check)
        running = asyncio.create_task(cluster.run())
        story = asyncio.create_task(self._run_story(cluster, facts))
        failure = asyncio.create_task(self._failed.wait())
        await asyncio.wait({running, story, failure}, return_when=asyncio.FIRST_COMPLETED)
        for task in (story, running):
            if task.done() and not task.cancelled() and (error := task.exception()):
                self._fail(type(error).__name__, _flat(error))
        self.digest = cluster.digest
        failure.cancel()
        for task in (story, running):
            task.cancel()
        cluster.on_step = lambda: None
        cluster.stop()
        await _end_everything()
        # Tasks that have failed and that nothing has awaited report it when they are collected.
        gc.collect()

    async def _run_story(self, cluster: SimulatedCluster, facts: Facts) -> None:
        loop, story = self._loop, self._story
        workload = Workload(cluster, self._seed, facts.observe)
        pause = story.pause or random.Random(f"{self._seed}/pause").choice(_MEAN_PAUSES)
        for step in plan_steps(self._seed, _WARM_UP, story.duration, pause):
            if not _included(step.number, story.only):
                continue
            await asyncio.sleep(step.at - loop.time())
            if done := workload.run(step):
                self.steps.append(step.number)
                cluster.record(done)
                self._tell(f"{loop.time():10.1f}  {step.number:4}  {done}")
        await asyncio.sleep(max(0.0, story.duration - loop.time()))
        workload.heal()
        self._tell(f"{loop.time():10.1f}        all faults are over")
        # A pod may have been about to start on a node that was moved.
        await asyncio.sleep(_REST / 3)
        workload.drain()
        await asyncio.sleep(_REST)
        if found := problems_at_rest(cluster):
            self._fail("at rest", "at rest: " + "; ".join(found))

    def _check(self, check: Callable[..., None], *subject: object) -> None:
        """Outside of the program whose step led here: its disk may fail, or it may have been killed."""
        try:
            Context().run(check, *subject)
        except Violation as violation:
            self._fail(violation.name, str(violation))
        except Exception as error:
            self._fail("a check failed itself", _flat(error))

    def _on_unexpected_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """In a callback, or in a task that nothing awaits."""
        error = context.get("exception")
        if isinstance(error, BaseExceptionGroup):
            error = error.split(Killed)[1]
        if error is not None and not isinstance(error, Killed):
            self._fail("unexpected error", f"{context['message']}: {_flat(error)}")

    def _fail_at_unexpected_error(self, logger: object, method: str, event: EventDict) -> EventDict:
        """The driver goes on after an error that it did not expect, but logs it with its traceback."""
        if error := event.get("exc_info"):
            self._fail("unexpected error", f"{event['event']}: {_flat(error)}")
        raise structlog.DropEvent

    def _fail(self, name: str, problem: str) -> None:
        self._failed.set()
        if not self.problem:
            now = self._loop.time()
            self.name, self.problem = name, f"after {now:.1f} s: {problem}"
            self._tell(f"{now:10.1f}        FAILED: {problem}")


def _included(number: int, only: Collection[int] | None) -> bool:
    return only is None or number in only


def _flat(error: BaseException) -> str:
    """The innermost errors of a group."""
    if isinstance(error, BaseExceptionGroup):
        return ", ".join(_flat(one) for one in error.exceptions)
    return f"{type(error).__name__}: {error}"


async def _end_everything() -> None:
    """A task that is left over would end in the middle of the next seed."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=60.0)


def _fast_directory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
