"""Workers: one key's failure is nobody else's."""

import asyncio

from imex_dra.base.errors import Rejected, TooManyRequests, Unavailable
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.controller import Controller
from imex_dra.kube.queue import WorkQueue
from tests.virtual import run

BACKOFF = Backoff(1.0, 60.0, jitter=lambda: 1.0)


def test_a_failing_key_waits_while_the_others_go_on() -> None:
    failures: dict[str, list[Exception]] = {
        "flaky": [Unavailable("down"), Unavailable("down")],
        "busy": [TooManyRequests("slow down", retry_after=30.0)],
        "broken": [RuntimeError("a bug")],
        "wrong": [Rejected("never")],
    }
    finished: dict[str, float] = {}

    async def reconcile(key: str) -> float | None:
        if failures.get(key):
            raise failures[key].pop()
        finished[key] = asyncio.get_running_loop().time()
        return None

    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(BACKOFF)
        running = asyncio.create_task(Controller("test", queue, reconcile, workers=2).run())
        for key in ("flaky", "busy", "broken", "wrong", "fine"):
            queue.add(key)
        await asyncio.sleep(100)
        queue.close()
        await running
        assert {key: round(moment) for key, moment in finished.items()} == {
            "fine": 0,
            "flaky": 3,
            "busy": 30,
            "broken": 1,
            "wrong": 1,
        }

    run(scenario())


def test_a_reconcile_may_ask_to_be_called_again() -> None:
    calls: list[float] = []

    async def reconcile(key: str) -> float | None:
        calls.append(asyncio.get_running_loop().time())
        return 5.0 if len(calls) < 3 else None

    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        running = asyncio.create_task(Controller("test", queue, reconcile).run())
        queue.add("a")
        await asyncio.sleep(60)
        queue.close()
        await running
        assert [round(call) for call in calls] == [0, 5, 10]

    run(scenario())
