"""What was checked, how long each step took, and the one sentence that says how it ended."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from imex_dra.picture.ink import Line, Lines, line, padded, widest


class Check(Struct, frozen=True):
    """One thing that had to be so: `found` says what was seen, whether it was or not."""

    what: str
    ok: bool
    found: str = ""


class ClaimRow(Struct, frozen=True, rename="camel"):
    """A claim as it was verified."""

    name: str
    pods: tuple[str, ...]
    state: str
    node: str = ""
    partition: str = ""
    channel: int | None = None


class StepReport(Struct, frozen=True, omit_defaults=True):
    name: str
    seconds: float
    checks: tuple[Check, ...] = ()
    failure: str = ""
    """Why it could not be finished."""

    @property
    def ok(self) -> bool:
        return not self.failure and all(check.ok for check in self.checks)


class Report(Struct, frozen=True):
    steps: tuple[StepReport, ...]
    seconds: float
    logs: str
    claims: tuple[ClaimRow, ...] = ()

    @property
    def ok(self) -> bool:
        return bool(self.steps) and all(step.ok for step in self.steps)

    @property
    def checks(self) -> int:
        return sum(len(step.checks) for step in self.steps)

    @property
    def failure(self) -> str:
        """The first thing that was not as it should be, in one sentence; empty if there was none."""
        for step in self.steps:
            for check in step.checks:
                if not check.ok:
                    return f"{step.name}: {check.what}: {check.found or 'no'}"
            if step.failure:
                return f"{step.name}: {step.failure}"
        return ""

    def as_json(self) -> bytes:
        document: dict[str, Any] = {"ok": self.ok, "failure": self.failure or None, "checks": self.checks}
        return msgspec.json.format(msgspec.json.encode(document | msgspec.to_builtins(self)))


def table(report: Report) -> Lines:
    """A line for each check, with its step and the step's time at the first."""
    rows = [row for step in report.steps for row in _rows(step)]
    first = widest(row[0] for row in rows)
    body = tuple((*padded(left, first), ("  ", ""), *right) for left, right in rows)
    return (*body, line(), verdict(report))


def _rows(step: StepReport) -> Iterator[tuple[Line, Line]]:
    head = line(f"{step.name:<16}", (f"{step.seconds:7.1f} s", "dim"))
    told = [_told(check) for check in step.checks]
    if step.failure:
        told.append(line(("FAILED  ", "bad"), step.failure))
    for number, words in enumerate(told or [line(("-", "dim"))]):
        yield (head if number == 0 else line()), words


def _told(check: Check) -> Line:
    mark = ("ok      ", "good") if check.ok else ("FAILED  ", "bad")
    return line(mark, check.what, (f": {check.found}" if check.found else "", "" if not check.ok else "dim"))


def verdict(report: Report) -> Line:
    if report.ok:
        return line((f"all {report.checks} checks are as they should be", "good"), f", {report.seconds:.0f} s")
    return line((f"not as it should be: {report.failure}", "bad"), f"; logs: {report.logs}")
