"""Workers in virtual time: which failures are retried, and when."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import structlog

from imex_dra.base.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    Misconfigured,
    NamespaceTerminating,
    NotFound,
    NotYet,
    Rejected,
    TooManyRequests,
    Unavailable,
)
from imex_dra.kube import controller
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.queue import WorkQueue
from tests.virtual import run

BACKOFF = Backoff(1.0, 60.0, jitter=lambda: 1.0)
RESYNC = 600.0


@dataclass
class Reconciler:
    """Raises the errors of a key one after the other, then succeeds. Records when each key was reconciled."""

    errors: dict[str, list[Exception]] = field(default_factory=dict)
    attempts: dict[str, list[int]] = field(default_factory=dict)

    async def reconcile(self, key: str) -> float | None:
        self.attempts.setdefault(key, []).append(round(asyncio.get_running_loop().time()))
        if self.errors.get(key):
            raise self.errors[key].pop(0)
        return None


def run_controller(
    reconcile: Callable[[str], Awaitable[float | None]],
    scenario: Callable[[WorkQueue[str]], Awaitable[None]],
    *,
    workers: int = 1,
) -> None:
    async def run_scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(BACKOFF)
        under_test = controller.Controller("test", queue, reconcile, workers=workers, resync=RESYNC)
        task = asyncio.create_task(under_test.run())
        await scenario(queue)
        queue.close()
        await task

    run(run_scenario())


def test_a_failing_key_is_retried_while_other_keys_are_reconciled() -> None:
    reconciler = Reconciler(
        {
            "flaky": [Unavailable("down"), Unavailable("down")],
            "busy": [TooManyRequests("slow down", retry_after=30.0)],
            "outdated": [Conflict("changed")],
            "waiting": [NotYet("not yet")],
            "broken": [RuntimeError("a bug")],
        }
    )

    async def scenario(queue: WorkQueue[str]) -> None:
        for key in (*reconciler.errors, "fine"):
            queue.add(key)
        await asyncio.sleep(100)

    run_controller(reconciler.reconcile, scenario, workers=2)
    assert reconciler.attempts == {
        "fine": [0],
        "flaky": [0, 1, 3],
        "busy": [0, 30],
        "outdated": [0, 1],
        "waiting": [0, 1],
        "broken": [0, 1],
    }


TERMINAL = [
    NotFound("gone"),
    AlreadyExists("taken"),
    Forbidden("no permission"),
    Invalid("spec.x"),
    Rejected("never"),
    Misconfigured("flag"),
]


@pytest.mark.parametrize("error", TERMINAL, ids=lambda error: type(error).__name__)
def test_a_terminal_error_is_not_retried_before_the_resync_period(error: Exception) -> None:
    reconciler = Reconciler({"a": [error]})

    async def scenario(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(RESYNC - 1)
        assert reconciler.attempts == {"a": [0]}
        await asyncio.sleep(RESYNC)
        assert reconciler.attempts == {"a": [0, RESYNC]}

    run_controller(reconciler.reconcile, scenario)


def test_a_change_after_a_terminal_error_is_reconciled_at_once_and_replaces_the_resync() -> None:
    reconciler = Reconciler({"a": [Invalid("spec.x")]})

    async def scenario(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(10)
        queue.add("a")
        await asyncio.sleep(2 * RESYNC)

    run_controller(reconciler.reconcile, scenario)
    assert reconciler.attempts == {"a": [0, 10]}


def test_a_change_during_an_attempt_that_fails_terminally_is_not_lost() -> None:
    attempts: list[float] = []

    async def reconcile(key: str) -> float | None:
        attempts.append(asyncio.get_running_loop().time())
        await asyncio.sleep(5)
        if len(attempts) == 1:
            raise NotFound("deleted meanwhile")
        return None

    async def scenario(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(2)
        queue.add("a")
        await asyncio.sleep(2 * RESYNC)

    run_controller(reconcile, scenario)
    assert [round(attempt) for attempt in attempts] == [0, 5]


def test_a_terminal_error_resets_the_back_off() -> None:
    reconciler = Reconciler({"a": [*[Unavailable("down")] * 4, Forbidden("no permission"), Unavailable("down")]})

    async def scenario(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(20)
        queue.add("a")
        await asyncio.sleep(20)

    run_controller(reconciler.reconcile, scenario)
    assert reconciler.attempts == {"a": [0, 1, 3, 7, 15, 20, 21]}


def test_each_failure_is_logged_once_and_only_those_that_need_attention_as_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Not capture_logs: another test may have configured logging, and the module's logger is then cached.
    capture = structlog.testing.LogCapture()
    everything = structlog.make_filtering_bound_logger(0)
    monkeypatch.setattr(controller, "log", structlog.wrap_logger(None, [capture], everything))
    failures = {
        "outdated": Conflict("changed"),
        "flaky": Unavailable("down"),
        "wrong": Rejected("never"),
        "deleted": NotFound("gone"),
        "namespace": NamespaceTerminating("going"),
        "broken": RuntimeError("a bug"),
    }
    reconciler = Reconciler({key: [error] for key, error in failures.items()})

    async def scenario(queue: WorkQueue[str]) -> None:
        for key in failures:
            queue.add(key)
        await asyncio.sleep(60)

    run_controller(reconciler.reconcile, scenario)
    logs = capture.entries
    assert {entry["key"]: (entry["log_level"], entry["error"]) for entry in logs} == {
        "outdated": ("debug", "changed"),
        "flaky": ("warning", "down"),
        "wrong": ("error", "never"),
        "deleted": ("info", "gone"),
        "namespace": ("info", "going"),
        "broken": ("error", "a bug"),
    }
    assert len(logs) == len(failures)
    (traceback,) = (entry["exc_info"] for entry in logs if "exc_info" in entry)
    assert traceback is failures["broken"]


def test_a_reconcile_can_request_another_one() -> None:
    calls: list[float] = []

    async def reconcile(key: str) -> float | None:
        calls.append(asyncio.get_running_loop().time())
        return 5.0 if len(calls) < 3 else None

    async def scenario(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(60)

    run_controller(reconcile, scenario)
    assert [round(call) for call in calls] == [0, 5, 10]


def test_every_reconcile_is_measured_with_its_result() -> None:
    measured: list[tuple[float, str]] = []
    errors: list[Exception | None] = [NotYet("soon"), Rejected("never"), None]

    async def reconcile(key: str) -> None:
        await asyncio.sleep(3)
        if error := errors.pop(0):
            raise error

    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(BACKOFF)
        under_test = controller.Controller(
            "test", queue, reconcile, measure=lambda seconds, result: measured.append((round(seconds), result))
        )
        task = asyncio.create_task(under_test.run())
        queue.add("key")
        await asyncio.sleep(10)  # the first attempt and its retry
        queue.add("key")
        await asyncio.sleep(10)
        queue.close()
        await task

    run(scenario())
    assert measured == [(3, "retry"), (3, "terminal"), (3, "ok")]
