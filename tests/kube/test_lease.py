"""Leader election in virtual time: at most one candidate works, even if networks and processes fail."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

import httpx2
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from imex_dra.api.meta import Key
from imex_dra.kube.backoff import use_generator
from imex_dra.kube.lease import LeaderElection, LostLeadership, Timing
from tests.kube.fakeapiserver import FakeApiServer, hang
from tests.kube.pausable import PausableProcess, make_task
from tests.virtual import LoopClock, run, runner

KEY = Key("imex-dra", "imex-controller")
TIMING = Timing(lease_duration=15, renew_deadline=10.0, retry_period=2.0)
RETRY = 1.25 * TIMING.retry_period
"""The longest pause between two reads of a candidate that waits."""
STOPPING = 4.0
"""Seconds that the work needs to stop; less than lease_duration - renew_deadline."""

MARGIN = TIMING.lease_duration - TIMING.renew_deadline - STOPPING
REQUEST_TIMEOUT = 10.0

CANDIDATES = st.integers(0, 2)
FAULTS = st.sampled_from(["refused", "requests lost", "responses lost"])


@dataclass
class SkewedClock(LoopClock):
    """The wall clocks of two machines differ, and so do the origins of their monotonic clocks."""

    offset: float

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.offset)

    def monotonic(self) -> float:
        return super().monotonic() + self.offset


def time() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Network:
    """The network between a candidate and the API server."""

    fault: str = ""
    request_delay: float = 0.0
    response_delay: float = 0.0
    broken_since: float | None = None

    async def send_request(self) -> None:
        await asyncio.sleep(self.request_delay)
        if self.fault == "refused":
            raise httpx2.ConnectError("refused")
        if self.fault == "requests lost":
            await self.time_out()

    async def send_response(self) -> None:
        await asyncio.sleep(self.response_delay)
        if self.fault == "responses lost":
            await self.time_out()

    async def time_out(self) -> None:
        await asyncio.sleep(REQUEST_TIMEOUT)
        raise httpx2.ReadTimeout("no response")


@dataclass
class Candidate:
    name: str
    clock: SkewedClock
    start_delay: float
    server: FakeApiServer
    changed: Callable[[], None]
    network: Network = field(default_factory=Network)
    process: PausableProcess = field(default_factory=PausableProcess)
    working: bool = False
    stopping: bool = False
    killed: bool = False
    paused_at: float = 0.0
    paused_for: float = 0.0
    resumed_at: float = -1.0
    terms: int = 0

    @property
    def excused(self) -> bool:
        """Paused for so long in this term that it could not stop its work in time."""
        paused = self.paused_for + (time() - self.paused_at if self.process.paused else 0.0)
        return paused >= MARGIN

    @property
    def just_resumed(self) -> bool:
        """It was paused at an arbitrary instruction and has not yet had a chance to look at the clock."""
        return time() - self.resumed_at < 0.001

    async def run(self) -> None:
        client = self.server.client("imex-controller", self.network.send_request, self.network.send_response)
        await asyncio.sleep(self.start_delay)
        while True:
            election = LeaderElection(client, KEY, self.name, self.clock, TIMING)
            try:
                await election.lead(self.work)
            except LostLeadership:
                continue

    async def work(self) -> None:
        self.working, self.stopping = True, False
        if not self.just_resumed:
            self.paused_for = 0.0
        self.terms += 1
        self.changed()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.stopping = True
            await asyncio.sleep(STOPPING)
            self.working = False


class LeaseMachine(RuleBasedStateMachine):
    """Three candidates; networks fail, processes are paused and killed, another client writes the Lease."""

    @initialize(offsets=st.tuples(*[st.floats(-1000, 1000)] * 3), delays=st.permutations([0.0, 0.7, 1.3]))
    def start(self, offsets: tuple[float, ...], delays: list[float]) -> None:
        # What hypothesis replays must run in the same way.
        use_generator(random.Random(0))
        self.runner = runner()
        self.runner.get_loop().set_task_factory(make_task)
        self.server = FakeApiServer()
        self.candidates = [
            Candidate(f"candidate-{number}", SkewedClock(offset), delay, self.server, self.check)
            for number, (offset, delay) in enumerate(zip(offsets, delays, strict=True))
        ]
        self.violation = ""
        self.runner.run(self.start_candidates())

    async def start_candidates(self) -> None:
        self.tasks = [candidate.process.start(candidate.run()) for candidate in self.candidates]
        self.checking = asyncio.create_task(self.check_periodically())

    async def check_periodically(self) -> None:
        while True:
            self.check()
            await asyncio.sleep(1.0)

    def check(self) -> None:
        working = [candidate for candidate in self.candidates if candidate.working]
        running = [candidate for candidate in working if not (candidate.process.paused or candidate.just_resumed)]
        active = [candidate.name for candidate in running if not candidate.stopping]
        unexcused = [candidate.name for candidate in working if not candidate.excused]
        if len(active) > 1:
            self.violation = f"{active} work at the same time"
        if len(unexcused) > 1 or (unexcused and active and {*unexcused, *active} != {*unexcused}):
            self.violation = f"{active} started before {unexcused} had stopped"
        for candidate in working:
            since = candidate.network.broken_since
            late = since is not None and time() - since > TIMING.renew_deadline + TIMING.retry_period + 0.1
            if late and not candidate.stopping and not candidate.process.paused:
                self.violation = f"{candidate.name} works {time() - (since or 0)} s after its network failed"

    @rule(number=CANDIDATES, fault=FAULTS)
    def a_network_fails(self, number: int, fault: str) -> None:
        self.runner.run(self.set_network(self.candidates[number].network, fault))

    @rule(fault=FAULTS, seconds=st.floats(TIMING.retry_period, 2 * TIMING.lease_duration))
    def the_leaders_network_fails_for(self, fault: str, seconds: float) -> None:
        for number, candidate in enumerate(self.candidates):
            if candidate.working:
                self.a_network_fails(number, fault)
        self.time_passes(seconds)

    @rule(number=CANDIDATES, request_delay=st.floats(0, 5), response_delay=st.floats(0, 9))
    def a_network_is_slow(self, number: int, request_delay: float, response_delay: float) -> None:
        self.runner.run(self.set_network(self.candidates[number].network, "", request_delay, response_delay))

    @rule(number=CANDIDATES)
    def a_network_recovers(self, number: int) -> None:
        self.runner.run(self.set_network(self.candidates[number].network, ""))

    async def set_network(
        self, network: Network, fault: str, request_delay: float = 0.0, response_delay: float = 0.0
    ) -> None:
        network.fault, network.request_delay, network.response_delay = fault, request_delay, response_delay
        if not fault:
            network.broken_since = None
        elif network.broken_since is None:
            network.broken_since = time()

    @rule(number=CANDIDATES)
    def a_process_is_paused(self, number: int) -> None:
        self.runner.run(self.pause(self.candidates[number]))

    async def pause(self, candidate: Candidate) -> None:
        if not candidate.process.paused:
            candidate.process.pause()
            candidate.paused_at = time()

    @rule(number=CANDIDATES)
    def a_process_is_resumed(self, number: int) -> None:
        if not self.candidates[number].killed:
            self.runner.run(self.resume(self.candidates[number]))

    @precondition(lambda self: sum(candidate.killed for candidate in self.candidates) < 2)
    @rule(number=CANDIDATES)
    def a_process_is_killed(self, number: int) -> None:
        self.a_process_is_paused(number)
        self.candidates[number].killed, self.candidates[number].working = True, False

    async def resume(self, candidate: Candidate) -> None:
        if candidate.process.paused:
            candidate.paused_for += time() - candidate.paused_at
            candidate.resumed_at = time()
            candidate.process.resume()
            await asyncio.sleep(0.001)
            self.check()

    @rule()
    def another_client_writes_the_lease(self) -> None:
        for path, lease in list(self.server.objects.items()):
            self.server.store(path, lease)

    @rule(seconds=st.floats(0.1, 25))
    def time_passes(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    @invariant()
    def at_most_one_candidate_works(self) -> None:
        assert not self.violation

    def teardown(self) -> None:
        try:
            self.after_recovery_one_candidate_leads_and_stays_leader()
        finally:
            self.runner.run(self.stop_candidates())
            self.runner.close()
            use_generator(random.SystemRandom())

    def after_recovery_one_candidate_leads_and_stays_leader(self) -> None:
        for number, candidate in enumerate(self.candidates):
            self.a_network_recovers(number)
            self.a_process_is_resumed(number)
            assert candidate.killed or not candidate.process.paused
        self.time_passes(REQUEST_TIMEOUT + TIMING.lease_duration + STOPPING + 2 * RETRY)
        (leader,) = [candidate for candidate in self.candidates if candidate.working]
        terms = sum(candidate.terms for candidate in self.candidates)
        self.time_passes(20)
        self.at_most_one_candidate_works()
        assert leader.working
        assert not leader.stopping
        assert sum(candidate.terms for candidate in self.candidates) == terms

    async def stop_candidates(self) -> None:
        for candidate in self.candidates:
            candidate.process.resume()
        for task in [*self.tasks, self.checking]:
            task.cancel()
        await asyncio.wait([*self.tasks, self.checking])


TestLease = LeaseMachine.TestCase
TestLease.settings = settings(max_examples=25, stateful_step_count=20)


@dataclass
class Workload:
    """Fails if two leaders work at the same time."""

    working: set[str] = field(default_factory=set)
    leaders: list[str] = field(default_factory=list)

    async def work(self, name: str) -> None:
        self.working.add(name)
        self.leaders.append(name)
        assert len(self.working) == 1, f"{self.working} work at the same time"
        try:
            await asyncio.sleep(10_000)
        finally:
            await asyncio.sleep(STOPPING)
            self.working.remove(name)


def elect(server: FakeApiServer, name: str, workload: Workload) -> "asyncio.Task[None]":
    election = LeaderElection(server.client("imex-controller"), KEY, name, LoopClock(), TIMING)
    return asyncio.create_task(election.lead(lambda: workload.work(name)))


def test_a_leader_that_stops_releases_the_lease_for_the_next_candidate() -> None:
    async def scenario() -> None:
        server, workload = FakeApiServer(), Workload()
        first = elect(server, "first", workload)
        await asyncio.sleep(1)
        second = elect(server, "second", workload)
        await asyncio.sleep(5)
        assert workload.leaders == ["first"]
        first.cancel()
        await asyncio.sleep(STOPPING + RETRY + 0.1)
        assert first.cancelled()
        assert workload.leaders == ["first", "second"]
        second.cancel()
        await asyncio.wait({second})

    run(scenario())


def test_candidates_that_wait_do_not_all_read_the_lease_at_the_same_moments() -> None:
    async def scenario() -> None:
        server, workload = FakeApiServer(), Workload()
        first = elect(server, "first", workload)
        await asyncio.sleep(1)
        reads: list[float] = []

        async def before() -> None:
            reads.append(time())

        election = LeaderElection(server.client("c", before), KEY, "second", LoopClock(), TIMING)
        second = asyncio.create_task(election.lead(lambda: workload.work("second")))
        await asyncio.sleep(60)
        pauses = {round(after - earlier, 3) for earlier, after in pairwise(reads)}
        assert len(pauses) > 1
        assert 0.75 * TIMING.retry_period <= min(pauses)
        assert max(pauses) <= RETRY
        for task in (first, second):
            task.cancel()
        await asyncio.wait({first, second})

    run(scenario())


def test_a_leader_that_cannot_reach_the_api_server_stops_before_the_lease_expires() -> None:
    async def scenario() -> None:
        server, workload = FakeApiServer(), Workload()
        disconnected = asyncio.Event()

        async def before() -> None:
            if disconnected.is_set():
                await hang()

        election = LeaderElection(server.client("c", before), KEY, "first", LoopClock(), TIMING)
        first = asyncio.create_task(election.lead(lambda: workload.work("first")))
        await asyncio.sleep(1)
        disconnected.set()
        with pytest.raises(LostLeadership, match="not renewed for 10 s"):
            await first
        assert not workload.working
        assert asyncio.get_running_loop().time() < 1 + TIMING.retry_period + TIMING.lease_duration

    run(scenario())


def test_a_failure_of_the_work_is_raised_and_releases_the_lease() -> None:
    async def fail() -> None:
        raise RuntimeError("broken")

    async def scenario() -> None:
        server = FakeApiServer()
        election = LeaderElection(server.client("c"), KEY, "first", LoopClock(), TIMING)
        with pytest.raises(RuntimeError, match="broken"):
            await election.lead(fail)
        (lease,) = server.objects.values()
        assert lease["spec"]["holderIdentity"] == ""

    run(scenario())


def test_an_unexpected_error_in_renewal_stops_the_work_and_is_raised() -> None:
    async def scenario() -> None:
        server, workload = FakeApiServer(), Workload()

        async def before() -> None:
            if server.writes:
                raise RuntimeError("a bug")

        election = LeaderElection(server.client("c", before), KEY, "first", LoopClock(), TIMING)
        with pytest.raises(RuntimeError, match="a bug"):
            await election.lead(lambda: workload.work("first"))
        assert not workload.working

    run(scenario())


def test_the_work_stops_at_once_if_another_candidate_holds_the_lease() -> None:
    async def scenario() -> None:
        server, workload = FakeApiServer(), Workload()
        first = elect(server, "first", workload)
        await asyncio.sleep(1)
        (path,) = server.objects
        server.store(path, {**server.objects[path], "spec": {"holderIdentity": "other"}})
        with pytest.raises(LostLeadership, match="held by other"):
            await first
        assert asyncio.get_running_loop().time() < 1 + TIMING.retry_period + STOPPING + 0.1
        assert server.objects[path]["spec"]["holderIdentity"] == "other"

    run(scenario())


def test_after_the_lease_is_deleted_the_holder_stops_before_a_candidate_that_saw_it_starts() -> None:
    async def scenario() -> None:
        server, workload = FakeApiServer(), Workload()
        first = elect(server, "first", workload)
        await asyncio.sleep(1)
        second = elect(server, "second", workload)
        await asyncio.sleep(5)
        server.objects.clear()
        with pytest.raises(LostLeadership, match="was deleted"):
            await first
        assert workload.leaders == ["first"]
        assert asyncio.get_running_loop().time() < 6 + TIMING.retry_period + STOPPING + 0.1
        await asyncio.sleep(TIMING.lease_duration + RETRY)
        assert workload.leaders == ["first", "second"]
        second.cancel()
        await asyncio.wait({second})

    run(scenario())


def test_a_leader_whose_work_stops_slowly_holds_the_lease_until_it_has_stopped() -> None:
    async def scenario() -> None:
        server, workload = FakeApiServer(), Workload()
        stopped_at: list[float] = []

        async def work() -> None:
            try:
                await asyncio.sleep(10_000)
            finally:
                await asyncio.sleep(3 * TIMING.lease_duration)
                stopped_at.append(time())

        election = LeaderElection(server.client("c"), KEY, "first", LoopClock(), TIMING)
        first = asyncio.create_task(election.lead(work))
        await asyncio.sleep(1)
        second = elect(server, "second", workload)
        first.cancel()
        await asyncio.sleep(3 * TIMING.lease_duration - 1)
        assert (workload.leaders, stopped_at) == ([], [])
        await asyncio.sleep(RETRY + 1)
        assert workload.leaders == ["second"]
        second.cancel()
        await asyncio.wait({first, second})

    run(scenario())


def test_the_renew_deadline_counts_from_the_moment_the_last_successful_renewal_was_sent() -> None:
    async def scenario() -> None:
        server, stopped = FakeApiServer(), asyncio.Event()
        sent_at: list[float] = []

        async def before() -> None:
            sent_at.append(time())
            if len(sent_at) > 3:
                raise httpx2.ConnectError("refused")

        async def after() -> None:
            if len(sent_at) > 2:
                await asyncio.sleep(3)

        async def work() -> None:
            try:
                await asyncio.sleep(10_000)
            finally:
                stopped.set()

        timing = Timing(lease_duration=15, renew_deadline=9.0, retry_period=4.0)
        election = LeaderElection(server.client("c", before, after), KEY, "first", LoopClock(), timing)
        first = asyncio.create_task(election.lead(work))
        await stopped.wait()
        assert sent_at == [0, 0, 4, 11]  # get, create, renewal with a response at 7, failed renewal
        assert time() == pytest.approx(4 + 9)
        await asyncio.wait({first})
        assert isinstance(first.exception(), LostLeadership)

    run(scenario())


def test_an_acquisition_whose_response_was_too_late_is_repeated() -> None:
    async def scenario() -> None:
        server, workload, slow = FakeApiServer(), Workload(), [2 * TIMING.renew_deadline]

        async def after() -> None:
            if server.writes and slow:
                await asyncio.sleep(slow.pop())

        election = LeaderElection(server.client("c", after=after), KEY, "first", LoopClock(), TIMING)
        first = asyncio.create_task(election.lead(lambda: workload.work("first")))
        await asyncio.sleep(2 * TIMING.renew_deadline + TIMING.retry_period - 0.1)
        assert workload.leaders == []
        await asyncio.sleep(1)
        assert workload.leaders == ["first"]
        first.cancel()
        await asyncio.wait({first})

    run(scenario())
