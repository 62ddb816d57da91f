"""One seed: a cluster, faults for a while, then rest, then everything must be as it should."""

import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from imex_dra.kube.backoff import use_generator
from imex_sandbox.simulation.cluster import SimulatedCluster
from imex_sandbox.simulation.invariants import Violation, check_every_step, problems_at_rest
from imex_sandbox.simulation.loop import VirtualLoop
from imex_sandbox.simulation.process import killable_files
from imex_sandbox.simulation.workload import Workload

DAY = 86400.0
_WARM_UP = 120.0
_MEAN_PAUSE = 120.0
_REST = 1800.0


class Outcome(NamedTuple):
    seed: int
    problem: str
    virtual_seconds: float
    operations: int
    changes: int
    seconds: float


def simulate(seed: int, duration: float, tell: Callable[[str], object] | None = None) -> Outcome:
    began = time.monotonic()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    run = Run(seed, duration, tell)
    loop = VirtualLoop()
    try:
        with tempfile.TemporaryDirectory(dir=_fast_directory()) as directory, killable_files():
            loop.run_until_complete(run.run(Path(directory)))
    finally:
        loop.close()
    return Outcome(seed, run.problem, loop.time(), run.operations, run.changes, time.monotonic() - began)


class Run:
    def __init__(self, seed: int, duration: float, tell: Callable[[str], object] | None) -> None:
        self._chance = random.Random(seed)
        use_generator(self._chance)
        self._duration = duration
        self._tell = tell or (lambda line: None)
        self.problem = ""
        self.operations = 0
        self.changes = 0

    async def run(self, directory: Path) -> None:
        racks, nodes = self._chance.choice(((1, 3), (1, 4), (1, 6), (2, 3)))
        cluster = SimulatedCluster(self._chance, directory, racks=racks, nodes=nodes)
        cluster.check = lambda: self._check(cluster)
        running = asyncio.create_task(cluster.run())
        story = asyncio.create_task(self._story(cluster))
        await asyncio.wait({running, story}, return_when=asyncio.FIRST_COMPLETED)
        for task in (story, running):
            if task.done() and not task.cancelled() and (error := task.exception()):
                self._fail(f"{type(error).__name__}: {error}" if not isinstance(error, Violation) else str(error))
            task.cancel()
        cluster.stop()
        self.changes = cluster.storage.version
        await _end_everything()

    async def _story(self, cluster: SimulatedCluster) -> None:
        loop, workload = asyncio.get_running_loop(), Workload(cluster)
        await asyncio.sleep(_WARM_UP)
        while loop.time() < self._duration and not self.problem:
            if done := workload.step():
                self.operations += 1
                self._tell(f"{loop.time():10.1f}  {done}")
            await asyncio.sleep(self._chance.expovariate(1 / _MEAN_PAUSE))
        workload.heal()
        self._tell(f"{loop.time():10.1f}  all faults are over")
        await asyncio.sleep(_REST)
        if not self.problem and (found := problems_at_rest(cluster)):
            self._fail("at rest: " + "; ".join(found))

    def _check(self, cluster: SimulatedCluster) -> None:
        try:
            check_every_step(cluster)
        except Violation as violation:
            self._fail(str(violation))

    def _fail(self, problem: str) -> None:
        if not self.problem:
            now = asyncio.get_running_loop().time()
            self.problem = f"after {now:.1f} s: {problem}"
            self._tell(f"{now:10.1f}  FAILED: {problem}")


async def _end_everything() -> None:
    """A task that is left over would end in the middle of the next seed."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=60.0)


def _fast_directory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
