"""The steps of a run: timed, recorded with their checks, and ended by the first check that fails."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from imex_dra.base.errors import ImexError, Unavailable
from imex_dra.picture.model import RunProgress, Step, StepState
from imex_sandbox.demo.report import Check, ClaimRow, Report, StepReport


class CheckFailed(ImexError):
    """The step has recorded the check."""


class StepLog:
    """`on_line` gets a line of text for everything that happens."""

    def __init__(
        self,
        names: Sequence[str],
        on_line: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.claims: tuple[ClaimRow, ...] = ()
        self._names = names
        self._on_line = on_line
        self._clock = clock
        self._began = clock()
        self._completed: list[StepReport] = []
        self._current: tuple[str, float] | None = None
        self._detail: Callable[[], str] = lambda: ""
        self._checks: list[Check] = []

    @contextmanager
    def step(self, name: str, detail: Callable[[], str] = lambda: "") -> Iterator[None]:
        """Record an error of the block as the failure of the step, and raise it again."""
        self._current, self._checks, self._detail = (name, self._clock()), [], detail
        self._on_line(f"{name} ...")
        failure = "interrupted"
        try:
            yield
            failure = ""
        except CheckFailed:
            failure = ""
            raise
        except ImexError as error:
            failure = first_sentence(error)
            raise
        except asyncio.CancelledError as cancelled:
            failure = str(cancelled) or failure
            raise
        finally:
            self._complete(failure)

    def expect(self, *checks: Check) -> None:
        """Record all checks, then raise CheckFailed for the first one that failed."""
        self._checks += checks
        for check in checks:
            if not check.ok:
                raise CheckFailed(f"{check.what}: {check.found}")

    def progress(self, title: str) -> RunProgress:
        """The completed, the current and the remaining steps, for the drawing."""
        now = self._clock()
        completed = [
            Step(step.name, StepState.DONE if step.ok else StepState.FAILED, step.seconds)
            for step in self._completed
        ]
        current = (
            [Step(self._current[0], StepState.RUNNING, now - self._current[1], self._detail())]
            if self._current
            else []
        )
        remaining = [Step(name) for name in self._names[len(completed) + len(current) :]]
        return RunProgress(title, (*completed, *current, *remaining), now - self._began)

    def report(self, logs: str) -> Report:
        seconds = round(self._clock() - self._began, 3)
        return Report(tuple(self._completed), seconds, logs, self.claims)

    def _complete(self, failure: str) -> None:
        assert self._current is not None
        name, began = self._current
        step = StepReport(name, round(self._clock() - began, 3), tuple(self._checks), failure)
        self._completed.append(step)
        self._current = None
        for check in step.checks:
            found = f": {check.found}" if check.found else ""
            self._on_line(f"  {'ok' if check.ok else 'FAILED'}: {check.what}{found}")
        if failure:
            self._on_line(f"  FAILED: {failure}")
        self._on_line(f"{name}: {step.seconds:.1f} s")


def first_sentence(error: Exception) -> str:
    """The first line of an error. If that line only introduces others, the last one, too."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {others[-1]}" if first.endswith(":") and others else first


async def run_while_alive(
    work: Coroutine[Any, Any, None], failure: Callable[[], str], period: float = 0.5
) -> None:
    """Run the coroutine. If `failure` returns a reason, cancel it with that reason and raise Unavailable."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=period)
            if not task.done() and (reason := failure()):
                task.cancel(reason)
                await asyncio.wait({task})
                raise Unavailable(reason)
    finally:
        task.cancel()
        await asyncio.wait({task})
    await task
