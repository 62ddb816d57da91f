"""The work queue in virtual time, against a model of which key is handed out when."""

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
KEYS = st.sampled_from(["a1", "a2", "a3", "b1", "b2", "c1"])
SECONDS = st.integers(0, 40).map(lambda quarters: quarters / 4)


def group_of(key: str) -> str:
    return key[0]


class QueueMachine(RuleBasedStateMachine):
    """Workers take keys or wait for one. The model knows which keys are ready, in process, and delayed."""

    @initialize()
    def start(self) -> None:
        self.runner = runner()
        self.queue: WorkQueue[str] = WorkQueue(Backoff(1.0, 8.0, jitter=lambda: 1.0), group=group_of)
        self.getters: list[asyncio.Task[str]] = []
        self.now = 0.0
        self.ready: list[str] = []
        """In the order in which they were added."""
        self.turns: list[str] = []
        """Groups with ready keys, the next one first."""
        self.processing: set[str] = set()
        self.added_meanwhile: set[str] = set()
        self.due: dict[str, tuple[float, int]] = {}
        self.failures: dict[str, int] = {}
        self.step = 0
        self.added_at: dict[str, int] = {}
        self.handed_out_at: dict[str, int] = {}

    def act(self, action: Callable[[], R]) -> R:
        """Runs the action in the event loop, and everything that follows from it immediately."""

        async def acting() -> R:
            result = action()
            await settled()
            return result

        self.step += 1
        result = self.runner.run(acting())
        self.check_getters()
        return result

    def check_getters(self) -> None:
        """Getters get ready keys in the order in which they began to wait."""
        while self.getters and self.ready:
            task = self.getters.pop(0)
            assert task.done(), f"{self.ready} are ready, and no getter was woken"
            self.model_take(task.result())
        assert not any(task.done() for task in self.getters)

    def model_take(self, key: str) -> None:
        group = self.turns.pop(0)
        assert key == next(ready for ready in self.ready if group_of(ready) == group)
        self.ready.remove(key)
        if any(group_of(ready) == group for ready in self.ready):
            self.turns.append(group)
        assert key not in self.processing, "handed out twice"
        self.processing.add(key)
        self.handed_out_at[key] = self.step

    def model_add(self, key: str) -> None:
        self.due.pop(key, None)
        if key in self.processing:
            self.added_meanwhile.add(key)
        elif key not in self.ready:
            self.ready.append(key)
            if group_of(key) not in self.turns:
                self.turns.append(group_of(key))

    def model_add_after(self, key: str, delay: float) -> None:
        due = (self.now + delay, self.step)
        if delay == 0:
            self.model_add(key)
        elif key not in self.ready and due[0] < self.due.get(key, (float("inf"), 0))[0]:
            self.due[key] = due

    def model_done(self, key: str) -> None:
        self.processing.remove(key)
        if key in self.added_meanwhile:
            self.added_meanwhile.remove(key)
            self.model_add(key)

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.added_at[key] = self.step
        self.model_add(key)
        self.act(lambda: self.queue.add(key))

    @rule(key=KEYS, delay=SECONDS)
    def add_after(self, key: str, delay: float) -> None:
        self.added_at[key] = self.step
        self.model_add_after(key, delay)
        self.act(lambda: self.queue.add_after(key, delay))

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        # Step by step: a getter takes its key when it is due, and that changes whose turn is next.
        while (next_due := min((when for when, _ in self.due.values()), default=end)) < end:
            self.advance(next_due)
        self.advance(end)

    def advance(self, time: float) -> None:
        self.runner.run(asyncio.sleep(time - self.now))
        self.now = time
        for _, key in sorted((when, key) for key, when in self.due.items() if when[0] <= time):
            self.model_add(key)
        self.act(lambda: None)

    @precondition(lambda self: self.ready)
    @rule()
    def take(self) -> None:
        self.step += 1
        self.model_take(self.runner.run(self.queue.get()))

    @precondition(lambda self: not self.ready and len(self.getters) < 3)
    @rule()
    def wait_for_a_key(self) -> None:
        self.act(lambda: self.getters.append(asyncio.ensure_future(self.queue.get())))

    @precondition(lambda self: self.getters)
    @rule(data=st.data())
    def cancel_a_getter(self, data: st.DataObject) -> None:
        cancelled = data.draw(st.sampled_from(self.getters))
        self.getters.remove(cancelled)
        self.act(cancelled.cancel)

    @precondition(lambda self: self.getters)
    @rule(key=KEYS)
    def cancel_a_getter_that_was_just_woken(self, key: str) -> None:
        cancelled = self.getters.pop(0)
        self.added_at[key] = self.step
        self.model_add(key)

        def both() -> None:
            self.queue.add(key)
            cancelled.cancel()

        self.act(both)

    @precondition(lambda self: self.processing)
    @rule(data=st.data(), requeue=st.none() | SECONDS)
    def succeed(self, data: st.DataObject, requeue: float | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.processing)))
        self.failures.pop(key, None)
        if requeue is not None:
            self.model_add_after(key, requeue)
        self.model_done(key)

        def report() -> None:
            self.queue.forget(key)
            if requeue is not None:
                self.queue.add_after(key, requeue)
            self.queue.done(key)

        self.act(report)

    @precondition(lambda self: self.processing)
    @rule(data=st.data(), retry_after=SECONDS)
    def fail(self, data: st.DataObject, retry_after: float) -> None:
        key = data.draw(st.sampled_from(sorted(self.processing)))
        self.failures[key] = self.failures.get(key, 0) + 1
        delay = max(retry_after, min(8.0, 2.0 ** (self.failures[key] - 1)))
        self.model_add_after(key, delay)
        self.model_done(key)

        def report() -> float:
            delay = self.queue.retry(key, at_least=retry_after)
            self.queue.done(key)
            return delay

        assert self.act(report) == delay

    @invariant()
    def the_number_of_ready_keys_is_that_of_the_model(self) -> None:
        assert len(self.queue) == len(self.ready)

    def teardown(self) -> None:
        try:
            self.every_added_key_is_handed_out_afterwards()
            self.closing_wakes_every_getter()
        finally:
            self.runner.close()

    def every_added_key_is_handed_out_afterwards(self) -> None:
        for _ in range(4):
            while self.ready:
                self.take()
            for key in sorted(self.processing):
                self.model_done(key)
                self.act(partial(self.queue.done, key))
            self.time_passes(20.0)
        assert (self.ready, self.processing, self.due) == ([], set(), {})
        assert all(self.handed_out_at[key] > step for key, step in self.added_at.items())

    def closing_wakes_every_getter(self) -> None:
        getters, self.getters = self.getters, []
        self.act(self.queue.close)
        assert all(isinstance(task.exception(), ShutDown) for task in getters)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=40)


@given(delays=st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_of_several_delays_for_a_key_only_the_earliest_counts(delays: list[float]) -> None:
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


def test_a_key_added_while_it_is_processed_is_handed_out_once_more_after_done() -> None:
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


def test_the_delay_grows_with_consecutive_failures_until_the_key_is_forgotten() -> None:
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


def test_an_immediate_add_replaces_a_delayed_one() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 50.0)
        queue.add("a")
        queue.done(await queue.get())
        await asyncio.sleep(100)
        assert len(queue) == 0

    run(scenario())


def test_keys_that_are_due_at_the_same_time_keep_the_order_in_which_they_were_delayed() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("late", 4.0)
        queue.add_after("early", 4.0)
        queue.add("late")
        assert await queue.get() == "late"
        queue.add_after("late", 4.0)
        queue.done("late")
        assert [await queue.get(), await queue.get()] == ["early", "late"]

    run(scenario())


def test_many_keys_of_one_group_delay_a_key_of_another_by_one() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(group=group_of)
        for number in range(10_000):
            queue.add(f"a{number}")
        queue.add("b")
        assert [await queue.get() for _ in range(3)] == ["a0", "b", "a1"]
        queue.add("c")
        assert [await queue.get() for _ in range(2)] == ["a2", "c"]
        assert len(queue) == 9_997

    run(scenario())


def test_a_cancelled_getter_does_not_lose_a_key() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        cancelled = asyncio.create_task(queue.get())
        other = asyncio.create_task(queue.get())
        await asyncio.sleep(1)
        queue.add("a")
        cancelled.cancel()
        assert await other == "a"

    run(scenario())


def test_closing_the_queue_wakes_every_getter() -> None:
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
