"""Leader election in virtual time: whatever the network does, never two at work."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import httpx2
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from imex_dra.api.meta import Key
from imex_dra.base.clock import LoopClock
from imex_dra.kube.lease import LeaderElection, LostLeadership, Timing
from tests.kube.memory import Memory, hang
from tests.kube.processes import Process, make_task
from tests.virtual import run, runner

KEY = Key("imex-dra", "imex-controller")
TIMING = Timing(duration=15, deadline=10.0, period=2.0)
STOPPING = 4.0
"""How long the work takes to end when it is told to; less than duration - deadline."""

MARGIN = TIMING.duration - TIMING.deadline - STOPPING
PATIENCE = 10.0
"""After which a client gives up an answer."""


WHO = st.integers(0, 2)
BROKEN = st.sampled_from(["refused", "silent", "deaf"])


@dataclass
class SkewedClock(LoopClock):
    """The wall clocks of two machines need not agree, nor their monotonic clocks have one origin."""

    offset: float

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.offset)

    def monotonic(self) -> float:
        return super().monotonic() + self.offset


def time() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Line:
    """A candidate's way to the API server: `fine`, `slow`, `refused`, `silent`, or `deaf`: answers are lost."""

    state: str = "fine"
    there: float = 0.0
    back: float = 0.0
    broken_since: float | None = None

    async def carry_there(self) -> None:
        await asyncio.sleep(self.there)
        if self.state == "refused":
            raise httpx2.ConnectError("refused")
        if self.state == "silent":
            await self.give_up()

    async def carry_back(self) -> None:
        await asyncio.sleep(self.back)
        if self.state == "deaf":
            await self.give_up()

    async def give_up(self) -> None:
        await asyncio.sleep(PATIENCE)
        raise httpx2.ReadTimeout("no answer")


@dataclass
class Candidate:
    name: str
    clock: SkewedClock
    late: float
    memory: Memory
    changed: Callable[[], None]
    line: Line = field(default_factory=Line)
    process: Process = field(default_factory=Process)
    busy: bool = False
    ending: bool = False
    dead: bool = False
    stopped_at: float = 0.0
    stopped_for: float = 0.0
    awake_since: float = -1.0
    terms: int = 0

    @property
    def excused(self) -> bool:
        """Stopped for so long in this term that nobody can ask it to have ended in time."""
        stopped = self.stopped_for + (time() - self.stopped_at if self.process.stopped else 0.0)
        return stopped >= MARGIN

    @property
    def just_awake(self) -> bool:
        """Stopped a moment ago at any instruction; it had no time yet to look at the clock."""
        return time() - self.awake_since < 0.001

    async def stand(self) -> None:
        client = self.memory.client("imex-controller", self.line.carry_there, self.line.carry_back)
        await asyncio.sleep(self.late)
        while True:
            election = LeaderElection(client, KEY, self.name, self.clock, TIMING)
            try:
                await election.lead(self.work)
            except LostLeadership:
                continue

    async def work(self) -> None:
        self.busy, self.ending = True, False
        if not self.just_awake:
            self.stopped_for = 0.0
        self.terms += 1
        self.changed()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.ending = True
            await asyncio.sleep(STOPPING)
            self.busy = False


class LeaseMachine(RuleBasedStateMachine):
    """Three candidates; lines break and heal, processes stop, go on and die, strangers touch the Lease."""

    @initialize(offsets=st.tuples(*[st.floats(-1000, 1000)] * 3), delays=st.permutations([0.0, 0.7, 1.3]))
    def start(self, offsets: tuple[float, ...], delays: list[float]) -> None:
        self.runner = runner()
        self.runner.get_loop().set_task_factory(make_task)
        self.memory = Memory()
        self.candidates = [
            Candidate(f"candidate-{number}", SkewedClock(offset), delay, self.memory, self.look)
            for number, (offset, delay) in enumerate(zip(offsets, delays, strict=True))
        ]
        self.overlap = ""
        self.runner.run(self.open_the_poll())

    async def open_the_poll(self) -> None:
        self.tasks = [candidate.process.start(candidate.stand()) for candidate in self.candidates]
        self.watching = asyncio.create_task(self.watch())

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(1.0)

    def look(self) -> None:
        busy = [candidate for candidate in self.candidates if candidate.busy]
        awake = [candidate for candidate in busy if not (candidate.process.stopped or candidate.just_awake)]
        working = [candidate.name for candidate in awake if not candidate.ending]
        unexcused = [candidate.name for candidate in busy if not candidate.excused]
        if len(working) > 1:
            self.overlap = f"at work together: {working}"
        if len(unexcused) > 1 or (unexcused and working and {*unexcused, *working} != {*unexcused}):
            self.overlap = f"{working} at work before {unexcused} had ended"
        for candidate in busy:
            since = candidate.line.broken_since
            late = since is not None and time() - since > TIMING.deadline + TIMING.period + 0.1
            if late and not candidate.ending and not candidate.process.stopped:
                self.overlap = f"{candidate.name} still works, {time() - (since or 0)} s after its line broke"

    @rule(who=WHO, state=BROKEN)
    def a_line_breaks(self, who: int, state: str) -> None:
        self.runner.run(self.set_line(self.candidates[who].line, state))

    @rule(state=BROKEN, seconds=st.floats(TIMING.period, 2 * TIMING.duration))
    def the_leaders_line_breaks_for(self, state: str, seconds: float) -> None:
        for who, candidate in enumerate(self.candidates):
            if candidate.busy:
                self.a_line_breaks(who, state)
        self.time_passes(seconds)

    @rule(who=WHO, there=st.floats(0, 5), back=st.floats(0, 9))
    def a_line_is_slow(self, who: int, there: float, back: float) -> None:
        self.runner.run(self.set_line(self.candidates[who].line, "slow", there, back))

    @rule(who=WHO)
    def a_line_heals(self, who: int) -> None:
        self.runner.run(self.set_line(self.candidates[who].line, "fine"))

    async def set_line(self, line: Line, state: str, there: float = 0.0, back: float = 0.0) -> None:
        line.state, line.there, line.back = state, there, back
        if state in ("fine", "slow"):
            line.broken_since = None
        elif line.broken_since is None:
            line.broken_since = time()

    @rule(who=WHO)
    def a_process_is_stopped(self, who: int) -> None:
        self.runner.run(self.stop(self.candidates[who]))

    async def stop(self, candidate: Candidate) -> None:
        if not candidate.process.stopped:
            candidate.process.stop()
            candidate.stopped_at = time()

    @rule(who=WHO)
    def a_process_goes_on(self, who: int) -> None:
        if not self.candidates[who].dead:
            self.runner.run(self.go_on(self.candidates[who]))

    @precondition(lambda self: sum(candidate.dead for candidate in self.candidates) < 2)
    @rule(who=WHO)
    def a_process_dies(self, who: int) -> None:
        self.a_process_is_stopped(who)
        self.candidates[who].dead, self.candidates[who].busy = True, False

    async def go_on(self, candidate: Candidate) -> None:
        if candidate.process.stopped:
            candidate.stopped_for += time() - candidate.stopped_at
            candidate.awake_since = time()
            candidate.process.go_on()
            await asyncio.sleep(0.001)
            self.look()

    @rule()
    def somebody_touches_the_lease(self) -> None:
        for path, lease in list(self.memory.objects.items()):
            self.memory.store(path, lease)

    @rule(seconds=st.floats(0.1, 25))
    def time_passes(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    @invariant()
    def never_two_at_work(self) -> None:
        assert not self.overlap

    def teardown(self) -> None:
        try:
            self.somebody_leads_in_the_end_and_stays()
        finally:
            self.runner.run(self.close_the_poll())
            self.runner.close()

    def somebody_leads_in_the_end_and_stays(self) -> None:
        for who, candidate in enumerate(self.candidates):
            self.a_line_heals(who)
            self.a_process_goes_on(who)
            assert candidate.dead or not candidate.process.stopped
        self.time_passes(PATIENCE + TIMING.duration + STOPPING + 2 * TIMING.period)
        (leader,) = [candidate for candidate in self.candidates if candidate.busy]
        terms = sum(candidate.terms for candidate in self.candidates)
        self.time_passes(20)
        self.never_two_at_work()
        assert leader.busy
        assert not leader.ending
        assert sum(candidate.terms for candidate in self.candidates) == terms

    async def close_the_poll(self) -> None:
        for candidate in self.candidates:
            candidate.process.go_on()
        for task in [*self.tasks, self.watching]:
            task.cancel()
        await asyncio.wait([*self.tasks, self.watching])


TestLease = LeaseMachine.TestCase
TestLease.settings = settings(max_examples=25, stateful_step_count=20)


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


def test_a_lease_that_was_deleted_ends_its_holders_work_before_a_rival_that_knew_it_starts() -> None:
    async def scenario() -> None:
        memory, stage = Memory(), Stage()
        first = elect(memory, "first", stage)
        await asyncio.sleep(1)
        second = elect(memory, "second", stage)
        await asyncio.sleep(5)
        memory.objects.clear()
        with pytest.raises(LostLeadership, match="was deleted"):
            await first
        assert stage.turns == ["first"]
        assert asyncio.get_running_loop().time() < 6 + TIMING.period + STOPPING + 0.1
        await asyncio.sleep(TIMING.duration + TIMING.period)
        assert stage.turns == ["first", "second"]
        second.cancel()
        await asyncio.wait({second})

    run(scenario())


def test_a_leader_that_takes_long_to_leave_stays_the_holder_until_it_left() -> None:
    async def scenario() -> None:
        memory, stage = Memory(), Stage()
        left: list[float] = []

        async def work() -> None:
            try:
                await asyncio.sleep(10_000)
            finally:
                await asyncio.sleep(3 * TIMING.duration)
                left.append(time())

        election = LeaderElection(memory.client("c"), KEY, "first", LoopClock(), TIMING)
        first = asyncio.create_task(election.lead(work))
        await asyncio.sleep(1)
        second = elect(memory, "second", stage)
        first.cancel()
        await asyncio.sleep(3 * TIMING.duration - 1)
        assert (stage.turns, left) == ([], [])
        await asyncio.sleep(TIMING.period + 1)
        assert stage.turns == ["second"]
        second.cancel()
        await asyncio.wait({first, second})

    run(scenario())


def test_the_deadline_counts_from_the_sending_of_the_last_good_renewal_and_is_kept_to_the_moment() -> None:
    async def scenario() -> None:
        memory, stopped = Memory(), asyncio.Event()
        sendings: list[float] = []

        async def there() -> None:
            sendings.append(time())
            if len(sendings) > 3:
                raise httpx2.ConnectError("refused")

        async def back() -> None:
            if len(sendings) > 2:
                await asyncio.sleep(3)

        async def work() -> None:
            try:
                await asyncio.sleep(10_000)
            finally:
                stopped.set()

        timing = Timing(duration=15, deadline=9.0, period=4.0)
        election = LeaderElection(memory.client("c", there, back), KEY, "first", LoopClock(), timing)
        first = asyncio.create_task(election.lead(work))
        await stopped.wait()
        assert sendings == [0, 0, 4, 11]  # get, create, renew with an answer at 7, renew in vain
        assert time() == pytest.approx(4 + 9)
        await asyncio.wait({first})
        assert isinstance(first.exception(), LostLeadership)

    run(scenario())


def test_a_leadership_whose_answer_came_too_late_is_asked_for_anew() -> None:
    async def scenario() -> None:
        memory, stage, slow = Memory(), Stage(), [2 * TIMING.deadline]

        async def back() -> None:
            if memory.writes and slow:
                await asyncio.sleep(slow.pop())

        election = LeaderElection(memory.client("c", after=back), KEY, "first", LoopClock(), TIMING)
        first = asyncio.create_task(election.lead(lambda: stage.work("first")))
        await asyncio.sleep(2 * TIMING.deadline + TIMING.period - 0.1)
        assert stage.turns == []
        await asyncio.sleep(1)
        assert stage.turns == ["first"]
        first.cancel()
        await asyncio.wait({first})

    run(scenario())
