"""What was checked, how long each step took, and the one sentence that says how it ended."""

import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from imex_dra.picture.ink import Line, Lines, Span, line, padded

_MARK, _INDENT, _NARROW = 27, 35, 20
_OK, _FAILED, _NOTHING = ("ok", "good"), ("FAILED", "bad"), ("", "")


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


def table(report: Report, width: int = 0) -> Lines:
    """A line for each check, the first with its step and the time; wrapped to the width, if one is given."""
    lines: list[Line] = []
    for step in report.steps:
        head = line(f"{step.name:<16}", (f"{step.seconds:7.1f} s", "dim"))
        for mark, words in _told(step):
            for part in textwrap.wrap(words, max(width - _INDENT, _NARROW)) if width else [words]:
                lines.append((*padded(head, _MARK), *padded(line(mark), _INDENT - _MARK), (part, "")))
                head, mark = line(), _NOTHING
    return (*lines, line(), verdict(report))


def _told(step: StepReport) -> Iterator[tuple[Span, str]]:
    for check in step.checks:
        yield _OK if check.ok else _FAILED, f"{check.what}: {check.found}" if check.found else check.what
    if step.failure:
        yield _FAILED, step.failure
    elif not step.checks:
        yield _NOTHING, "nothing was checked"


def verdict(report: Report) -> Line:
    if report.ok:
        return line((f"all {report.checks} checks are as they should be", "good"), f", {report.seconds:.0f} s")
    return line((f"not as it should be: {report.failure}", "bad"), f"; logs: {report.logs}")
