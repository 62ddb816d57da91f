"""Virtual time: nothing waits for real."""

import asyncio
import time

import pytest

from imex_sandbox.simulation.loop import Deadlock, Livelock, VirtualLoop


def test_a_day_passes_in_a_moment_and_timers_fire_in_order() -> None:
    loop, fired = VirtualLoop(), []

    async def note(after: float) -> None:
        await asyncio.sleep(after)
        fired.append(loop.time())

    async def main() -> None:
        await asyncio.gather(*(note(after) for after in (86400.0, 0.5, 3600.0)))

    began = time.monotonic()
    loop.run_until_complete(main())
    assert fired == pytest.approx([0.5, 3600.0, 86400.0])
    assert time.monotonic() - began < 10.0
    loop.close()


def test_what_would_run_in_a_thread_runs_on_the_loop() -> None:
    loop, order = VirtualLoop(), []

    async def main() -> None:
        order.append("before")
        await asyncio.to_thread(order.append, "inside")
        order.append("after")
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)

    loop.run_until_complete(main())
    assert order == ["before", "inside", "after"]
    loop.close()


def test_a_program_in_which_nothing_can_ever_happen_is_a_deadlock() -> None:
    loop = VirtualLoop()
    with pytest.raises(Deadlock):
        loop.run_until_complete(asyncio.Event().wait())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_waiting_for_what_rounding_has_left_of_a_period_ends() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        await asyncio.sleep(16403.9)
        began = loop.time()
        while loop.time() == began:
            await asyncio.sleep(1e-13)

    loop.run_until_complete(main())
    loop.close()


def test_work_without_an_end_is_an_error() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="steps in less than a minute"):
        loop.run_until_complete(main())
    loop.close()
