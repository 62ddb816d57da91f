"""The work queue in virtual time, against a model of who must be handed out when."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from imex_dra.kube.backoff import Backoff
from imex_dra.kube.queue import ShutDown, WorkQueue
from tests.virtual import run, runner

R = TypeVar("R")
KEYS = st.sampled_from("abc")
SECONDS = st.integers(0, 40).map(lambda quarters: quarters / 4)


class QueueMachine(RuleBasedStateMachine):
    """Hands take keys, some wait for one, and the model says exactly who holds and who waits for what."""

    @initialize()
    def start(self) -> None:
        self.runner = runner()
        self.queue: WorkQueue[str] = WorkQueue(Backoff(1.0, 8.0, jitter=lambda: 1.0))
        self.waiting: list[asyncio.Task[str]] = []
        self.now = 0.0
        self.ready: list[str] = []
        self.held: set[str] = set()
        self.again: set[str] = set()
        self.due: dict[str, tuple[float, int]] = {}
        self.failures: dict[str, int] = {}
        self.step = 0
        self.asked: dict[str, int] = {}
        self.handed: dict[str, int] = {}

    def act(self, action: Callable[[], R]) -> R:
        """Inside the loop, and then everything that follows at once."""

        async def acting() -> R:
            result = action()
            await settled()
            return result

        self.step += 1
        result = self.runner.run(acting())
        self.hand_over()
        return result

    def hand_over(self) -> None:
        """To those who wait, in the order in which they came."""
        while self.waiting and self.ready:
            task = self.waiting.pop(0)
            assert task.done(), f"{self.ready} could be had, and nobody was woken"
            self.model_take(task.result())
        assert not any(task.done() for task in self.waiting)

    def model_take(self, key: str) -> None:
        assert key == self.ready.pop(0)
        assert key not in self.held, "in two hands"
        self.held.add(key)
        self.handed[key] = self.step

    def model_add(self, key: str) -> None:
        self.due.pop(key, None)
        if key in self.held:
            self.again.add(key)
        elif key not in self.ready:
            self.ready.append(key)

    def model_add_after(self, key: str, delay: float) -> None:
        due = (self.now + delay, self.step)
        if delay == 0:
            self.model_add(key)
        elif key not in self.ready and due[0] < self.due.get(key, (float("inf"), 0))[0]:
            self.due[key] = due

    def model_done(self, key: str) -> None:
        self.held.remove(key)
        if key in self.again:
            self.again.remove(key)
            self.model_add(key)

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.asked[key] = self.step
        self.model_add(key)
        self.act(lambda: self.queue.add(key))

    @rule(key=KEYS, delay=SECONDS)
    def add_later(self, key: str, delay: float) -> None:
        self.asked[key] = self.step
        self.model_add_after(key, delay)
        self.act(lambda: self.queue.add_after(key, delay))

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        ripe = sorted((due, key) for key, due in self.due.items() if due[0] <= self.now)
        for _, key in ripe:
            self.model_add(key)
        self.runner.run(asyncio.sleep(seconds))
        self.act(lambda: None)

    @precondition(lambda self: self.ready)
    @rule()
    def take(self) -> None:
        self.step += 1
        self.model_take(self.runner.run(self.queue.get()))

    @precondition(lambda self: not self.ready and len(self.waiting) < 3)
    @rule()
    def wait_for_one(self) -> None:
        self.act(lambda: self.waiting.append(asyncio.ensure_future(self.queue.get())))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def lose_patience(self, data: st.DataObject) -> None:
        impatient = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(impatient)
        self.act(impatient.cancel)

    @precondition(lambda self: self.waiting)
    @rule(key=KEYS)
    def lose_patience_at_the_very_moment(self, key: str) -> None:
        impatient = self.waiting.pop(0)
        self.asked[key] = self.step
        self.model_add(key)

        def both() -> None:
            self.queue.add(key)
            impatient.cancel()

        self.act(both)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), again=st.none() | SECONDS)
    def succeed(self, data: st.DataObject, again: float | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        self.failures.pop(key, None)
        if again is not None:
            self.model_add_after(key, again)
        self.model_done(key)

        def report() -> None:
            self.queue.forget(key)
            if again is not None:
                self.queue.add_after(key, again)
            self.queue.done(key)

        self.act(report)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), patience=SECONDS)
    def fail(self, data: st.DataObject, patience: float) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        self.failures[key] = self.failures.get(key, 0) + 1
        delay = max(patience, min(8.0, 2.0 ** (self.failures[key] - 1)))
        self.model_add_after(key, delay)
        self.model_done(key)

        def report() -> float:
            told = self.queue.retry(key, at_least=patience)
            self.queue.done(key)
            return told

        assert self.act(report) == delay

    @invariant()
    def as_many_can_be_had_as_the_model_says(self) -> None:
        assert len(self.queue) == len(self.ready)

    def teardown(self) -> None:
        try:
            self.everything_asked_for_is_handed_out_afterwards()
            self.everybody_goes_home()
        finally:
            self.runner.close()

    def everything_asked_for_is_handed_out_afterwards(self) -> None:
        for _ in range(4):
            while self.ready:
                self.take()
            for key in sorted(self.held):
                self.model_done(key)
                self.act(partial(self.queue.done, key))
            self.time_passes(20.0)
        assert (self.ready, self.held, self.due) == ([], set(), {})
        assert all(self.handed[key] > step for key, step in self.asked.items())

    def everybody_goes_home(self) -> None:
        waiting, self.waiting = self.waiting, []
        self.act(self.queue.close)
        assert all(isinstance(task.exception(), ShutDown) for task in waiting)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=40)


@given(delays=st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_of_several_delays_the_earliest_counts_and_only_once(delays: list[float]) -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        for delay in delays:
            queue.add_after("a", delay)
        assert await queue.get() == "a"
        assert asyncio.get_running_loop().time() == pytest.approx(min(delays), abs=0.01)
        queue.done("a")
        await asyncio.sleep(200)
        assert len(queue) == 0

    run(scenario())


def test_a_key_added_while_it_is_worked_on_comes_back_once_when_done() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0
        queue.done("a")
        assert len(queue) == 1
        assert await queue.get() == "a"
        queue.done("a")
        assert len(queue) == 0

    run(scenario())


def test_failures_in_a_row_wait_ever_longer_up_to_the_limit_until_forgotten() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(Backoff(1.0, 8.0, jitter=lambda: 1.0))
        delays = []
        for _ in range(5):
            delays.append(queue.retry("a"))
            queue.done(await queue.get())
        assert delays == [1.0, 2.0, 4.0, 8.0, 8.0]
        queue.forget("a")
        assert queue.retry("a") == 1.0
        assert queue.retry("b", at_least=30.0) == 30.0

    run(scenario())


def test_an_ordinary_add_overtakes_a_delayed_one() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 50.0)
        queue.add("a")
        queue.done(await queue.get())
        await asyncio.sleep(100)
        assert len(queue) == 0

    run(scenario())


def test_a_cancelled_getter_loses_no_key() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        impatient = asyncio.create_task(queue.get())
        patient = asyncio.create_task(queue.get())
        await asyncio.sleep(1)
        queue.add("a")
        impatient.cancel()
        assert await patient == "a"

    run(scenario())


def test_a_closed_queue_lets_everybody_go() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(1)
        queue.close()
        with pytest.raises(ShutDown):
            await waiting
        queue.add("a")
        with pytest.raises(ShutDown):
            await queue.get()

    run(scenario())
