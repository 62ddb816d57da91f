"""The work queue in virtual time, against a model of who must be handed out when."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.kube.backoff import Backoff
from imex_dra.kube.queue import ShutDown, WorkQueue
from tests.virtual import run

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abc"), st.just(0.0)),
        st.tuples(st.just("after"), st.sampled_from("abc"), st.floats(0.0, 10.0)),
        st.tuples(st.just("sleep"), st.just(""), st.floats(0.0, 5.0)),
    ),
    max_size=40,
)


@given(steps=STEPS, workers=st.integers(1, 3), effort=st.floats(0.0, 3.0))
def test_every_key_is_worked_on_after_it_was_last_asked_for_and_never_by_two(
    steps: list[tuple[str, str, float]], workers: int, effort: float
) -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        time = asyncio.get_running_loop().time
        started: dict[str, list[float]] = {}
        wanted: dict[str, float] = {}
        in_hand: set[str] = set()

        async def work() -> None:
            while True:
                try:
                    key = await queue.get()
                except ShutDown:
                    return
                assert key not in in_hand
                in_hand.add(key)
                started.setdefault(key, []).append(time())
                await asyncio.sleep(effort)
                in_hand.remove(key)
                queue.done(key)

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        for verb, key, number in steps:
            if verb == "sleep":
                await asyncio.sleep(number)
            elif verb == "add":
                queue.add(key)
                wanted[key] = time()
            else:
                queue.add_after(key, number)
                wanted.setdefault(key, time())
        await asyncio.sleep(1000)
        for key, moment in wanted.items():
            assert started[key][-1] >= moment
        assert set(started) == set(wanted)
        assert len(queue) == 0
        queue.close()
        await asyncio.gather(*tasks)

    run(scenario())


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
