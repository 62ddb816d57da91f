"""Leader election in virtual time: whatever the network does, never two at work."""

import asyncio
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imex_dra.api.meta import Key
from imex_dra.base.clock import LoopClock
from imex_dra.kube.lease import LeaderElection, LostLeadership, Timing
from tests.kube.memory import Memory, hang
from tests.virtual import run

KEY = Key("imex-dra", "imex-controller")
TIMING = Timing(duration=15, deadline=10.0, period=2.0)
STOPPING = 4.0
"""How long the work takes to end when it is told to; less than duration - deadline."""


@dataclass
class SkewedClock(LoopClock):
    """The wall clocks of two machines need not agree, nor their monotonic clocks have one origin."""

    offset: float

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.offset)

    def monotonic(self) -> float:
        return super().monotonic() + self.offset


@dataclass
class Stage:
    """Who is at work, and whether it was ever more than one."""

    working: set[str] = field(default_factory=set)
    turns: list[str] = field(default_factory=list)

    async def work(self, name: str) -> None:
        self.working.add(name)
        self.turns.append(name)
        assert len(self.working) == 1, f"at work together: {self.working}"
        try:
            await asyncio.sleep(10_000)
        finally:
            await asyncio.sleep(STOPPING)
            self.working.remove(name)


@dataclass
class Network:
    """A candidate's line to the API server: slow, lossy, and cut for some stretches of time."""

    chance: random.Random
    slowness: float
    loss: float
    cuts: list[tuple[float, float]]

    async def carry(self) -> None:
        now = asyncio.get_running_loop().time()
        if any(start <= now < start + length for start, length in self.cuts):
            raise httpx2.ConnectError("the line is cut")
        await asyncio.sleep(self.chance.uniform(0, self.slowness))
        if self.chance.random() < self.loss:
            raise httpx2.ReadTimeout("lost")


CUTS = st.lists(st.tuples(st.floats(0, 200), st.floats(1, 60)), max_size=3)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    slowness=st.floats(0, 8),
    loss=st.floats(0, 0.6),
    candidates=st.lists(st.tuples(CUTS, st.floats(-1000, 1000)), min_size=2, max_size=3),
)
def test_never_two_at_work(
    seed: int, slowness: float, loss: float, candidates: list[tuple[list[tuple[float, float]], float]]
) -> None:
    async def candidate(number: int, cuts: list[tuple[float, float]], offset: float) -> None:
        network = Network(random.Random(seed + number), slowness, loss, cuts)
        client = memory.client("imex-controller", network.carry, network.carry)
        name = f"candidate-{number}"
        while True:
            election = LeaderElection(client, KEY, name, SkewedClock(offset), TIMING)
            try:
                await election.lead(lambda: stage.work(name))
            except LostLeadership:
                continue

    async def scenario() -> None:
        async with asyncio.timeout(400):
            async with asyncio.TaskGroup() as group:
                for number, (cuts, offset) in enumerate(candidates):
                    group.create_task(candidate(number, cuts, offset))

    memory, stage = Memory(), Stage()
    with pytest.raises(TimeoutError):
        run(scenario())


def elect(memory: Memory, name: str, stage: Stage) -> "asyncio.Task[None]":
    election = LeaderElection(memory.client("imex-controller"), KEY, name, LoopClock(), TIMING)
    return asyncio.create_task(election.lead(lambda: stage.work(name)))


def test_a_leader_that_leaves_in_order_lets_the_next_one_start_at_once() -> None:
    async def scenario() -> None:
        memory, stage = Memory(), Stage()
        first = elect(memory, "first", stage)
        await asyncio.sleep(1)
        second = elect(memory, "second", stage)
        await asyncio.sleep(5)
        assert stage.turns == ["first"]
        first.cancel()
        await asyncio.sleep(STOPPING + TIMING.period + 0.1)
        assert first.cancelled()
        assert stage.turns == ["first", "second"]
        second.cancel()
        await asyncio.wait({second})

    run(scenario())


def test_a_leader_cut_off_stops_in_time_and_says_so() -> None:
    async def scenario() -> None:
        memory, stage = Memory(), Stage()
        cut = asyncio.Event()

        async def line() -> None:
            if cut.is_set():
                await hang()

        election = LeaderElection(memory.client("c", line), KEY, "first", LoopClock(), TIMING)
        first = asyncio.create_task(election.lead(lambda: stage.work("first")))
        await asyncio.sleep(1)
        cut.set()
        with pytest.raises(LostLeadership, match="not renewed for 10 s"):
            await first
        assert not stage.working
        assert asyncio.get_running_loop().time() < 1 + TIMING.period + TIMING.duration

    run(scenario())


def test_the_works_own_failure_reaches_the_caller_and_frees_the_lease() -> None:
    async def fail() -> None:
        raise RuntimeError("broken")

    async def scenario() -> None:
        memory = Memory()
        election = LeaderElection(memory.client("c"), KEY, "first", LoopClock(), TIMING)
        with pytest.raises(RuntimeError, match="broken"):
            await election.lead(fail)
        (lease,) = memory.objects.values()
        assert lease["spec"]["holderIdentity"] == ""

    run(scenario())


def test_a_renewal_that_fails_for_a_reason_of_its_own_is_not_taken_for_an_order_to_stop() -> None:
    async def scenario() -> None:
        memory, stage = Memory(), Stage()

        async def line() -> None:
            if memory.writes:
                raise RuntimeError("a bug")

        election = LeaderElection(memory.client("c", line), KEY, "first", LoopClock(), TIMING)
        with pytest.raises(RuntimeError, match="a bug"):
            await election.lead(lambda: stage.work("first"))
        assert not stage.working

    run(scenario())


def test_a_rival_that_took_the_lease_ends_the_work_at_once() -> None:
    async def scenario() -> None:
        memory, stage = Memory(), Stage()
        first = elect(memory, "first", stage)
        await asyncio.sleep(1)
        (path,) = memory.objects
        memory.store(path, {**memory.objects[path], "spec": {"holderIdentity": "rival"}})
        with pytest.raises(LostLeadership, match="held by rival"):
            await first
        assert asyncio.get_running_loop().time() < 1 + TIMING.period + STOPPING + 0.1
        assert memory.objects[path]["spec"]["holderIdentity"] == "rival"

    run(scenario())
