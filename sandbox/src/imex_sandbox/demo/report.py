"""The report of the demo: the checks and the time of each step, as a table or as JSON."""

import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from imex_dra.picture.text import Line, Lines, Span, line, padded

_RESULT_COLUMN, _TEXT_COLUMN, _NARROWEST_TEXT = 27, 35, 20
_OK, _FAILED, _NO_RESULT = ("ok", "good"), ("FAILED", "bad"), ("", "")


class Check(Struct, frozen=True):
    """Something that must be true. `found` is what was seen, whether it is true or not."""

    what: str
    ok: bool
    found: str = ""


class ClaimRow(Struct, frozen=True, rename="camel"):
    """A claim as it was checked."""

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
    """Why the step was not completed."""

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
        """The first failure, in one sentence; empty if there is none."""
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
    """One line for each check, wrapped to the width if one is given. The first line of a step has its time."""
    lines: list[Line] = []
    for step in report.steps:
        head = line(f"{step.name:<16}", (f"{step.seconds:7.1f} s", "dim"))
        for result, text in _results(step):
            for part in textwrap.wrap(text, max(width - _TEXT_COLUMN, _NARROWEST_TEXT)) if width else [text]:
                padding = padded(line(result), _TEXT_COLUMN - _RESULT_COLUMN)
                lines.append((*padded(head, _RESULT_COLUMN), *padding, (part, "")))
                head, result = line(), _NO_RESULT
    return (*lines, line(), conclusion(report))


def _results(step: StepReport) -> Iterator[tuple[Span, str]]:
    for check in step.checks:
        yield _OK if check.ok else _FAILED, f"{check.what}: {check.found}" if check.found else check.what
    if step.failure:
        yield _FAILED, step.failure
    elif not step.checks:
        yield _NO_RESULT, "nothing was checked"


def conclusion(report: Report) -> Line:
    if report.ok:
        return line((f"all {report.checks} checks passed", "good"), f" in {report.seconds:.0f} s")
    return line((f"failed: {report.failure}", "bad"), f"; logs: {report.logs}")
