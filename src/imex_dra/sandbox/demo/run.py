"""Steps in order, each timed; the first that is not as it should be ends the run, and says why."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from imex_dra.base.errors import ImexError, Unavailable
from imex_dra.picture.scene import Progress, Step, Story
from imex_dra.sandbox.demo.report import Check, ClaimRow, Report, StepReport

Listener = Callable[[str], None]
"""Is told a line for everything that happens."""


class NotAsItShould(ImexError):
    """A check failed; its own words say which."""


class Run:
    def __init__(
        self,
        names: Sequence[str],
        listener: Listener = lambda words: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.detail: Callable[[], str] = lambda: ""
        self.claims: tuple[ClaimRow, ...] = ()
        self._names = names
        self._tell = listener
        self._clock = clock
        self._began = clock()
        self._done: list[StepReport] = []
        self._current: tuple[str, float] | None = None
        self._checks: list[Check] = []

    @contextmanager
    def step(self, name: str, detail: Callable[[], str] = lambda: "") -> Iterator[None]:
        """Whatever is raised on purpose in the block ends the step with its words, and goes on to the caller."""
        self._current, self._checks, self.detail = (name, self._clock()), [], detail
        self._tell(f"{name} ...")
        failure = "interrupted"
        try:
            yield
            failure = ""
        except NotAsItShould:
            failure = ""
            raise
        except ImexError as error:
            failure = sentence(error)
            raise
        except asyncio.CancelledError as stopped:
            failure = str(stopped) or failure
            raise
        finally:
            self._end(failure)

    def expect(self, *checks: Check) -> None:
        """All are recorded before the first that failed ends the step."""
        self._checks += checks
        for check in checks:
            if not check.ok:
                raise NotAsItShould(f"{check.what}: {check.found}")

    def story(self, title: str) -> Story:
        """As a picture tells it: what is done, what is being done, what is to come."""
        now = self._clock()
        done = [
            Step(step.name, Progress.DONE if step.ok else Progress.FAILED, step.seconds) for step in self._done
        ]
        begun = (
            [Step(self._current[0], Progress.RUNNING, now - self._current[1], self.detail())]
            if self._current
            else []
        )
        to_come = [Step(name) for name in self._names[len(done) + len(begun) :]]
        return Story(title, (*done, *begun, *to_come), now - self._began)

    def report(self, logs: str) -> Report:
        seconds = round(self._clock() - self._began, 3)
        return Report(tuple(self._done), seconds, logs, self.claims)

    def _end(self, failure: str) -> None:
        assert self._current is not None
        name, began = self._current
        ended = StepReport(name, round(self._clock() - began, 3), tuple(self._checks), failure)
        self._done.append(ended)
        self._current = None
        for check in ended.checks:
            self._tell(
                f"  {'ok' if check.ok else 'FAILED'}: {check.what}{': ' if check.found else ''}{check.found}"
            )
        if failure:
            self._tell(f"  FAILED: {failure}")
        self._tell(f"{name}: {ended.seconds:.1f} s")


def sentence(error: Exception) -> str:
    """An error's first line; where that only announces others, the last of them too."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {others[-1]}" if first.endswith(":") and others else first


async def unless_ended(work: Coroutine[Any, Any, None], ended: Callable[[], str], period: float = 0.5) -> None:
    """The work; but when its ground is gone, and `ended` says so in words, it is cancelled with these."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=period)
            if not task.done() and (words := ended()):
                task.cancel(words)
                await asyncio.wait({task})
                raise Unavailable(words)
    finally:
        task.cancel()
        await asyncio.wait({task})
    await task
