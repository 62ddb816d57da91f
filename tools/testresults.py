"""Results of pytest, for pages that list them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import msgspec


class Result(msgspec.Struct, frozen=True):
    """Of one suite. `remarks`: failed tests, reasons of skips, programs of other releases."""

    release: str
    date: str
    passed: int
    failed: int
    skipped: int
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [f"{self.passed} passed", f"**{self.failed} failed**", f"{self.skipped} skipped"]
        return ", ".join(word for word, count in zip(words, (1, self.failed, self.skipped), strict=True) if count)


Results = dict[str, dict[str, Result]]
"""By suite, and by what it ran on."""


def load(file: Path) -> Results:
    return msgspec.json.decode(file.read_bytes(), type=Results) if file.exists() else {}


def store(file: Path, suite: str, ran_on: str, result: Result) -> None:
    """Other results in the file are kept."""
    results = load(file)
    results.setdefault(suite, {})[ran_on] = result
    file.write_bytes(msgspec.json.format(msgspec.json.encode(results, order="sorted"), indent=1) + b"\n")


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


class Selection(NamedTuple):
    """Tests of a suite, as pytest selects them."""

    paths: Sequence[str]
    marker: str = ""

    @property
    def arguments(self) -> list[str]:
        return [*self.paths, *(["-m", self.marker] if self.marker else [])]

    def includes(self, case: ElementTree.Element) -> bool:
        """In a JUnit report that tests/conftest.py adds the markers to."""
        module = f"{case.get('classname')}."
        modules = [path.removesuffix(".py").replace("/", ".") for path in self.paths]
        markers = [found.get("value", "").split() for found in case.iter("property")]
        return any(module.startswith(f"{one}.") for one in modules) and (
            not self.marker or any(self.marker in found for found in markers)
        )


def parse(report: bytes, *, release: str, date: str, selection: Selection | None = None) -> Result:
    """A JUnit report of pytest, or the tests in it that are selected."""
    every = ElementTree.fromstring(report).iter("testcase")
    cases = [case for case in every if selection is None or selection.includes(case)]
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skips = [skip.get("message", "") for case in cases if (skip := case.find("skipped")) is not None]
    remarks = [f"failed: {case.get('name')}" for case in failed] + [f"skipped: {reason}" for reason in skips]
    return Result(
        release,
        date,
        passed=len(cases) - len(failed) - len(skips),
        failed=len(failed),
        skipped=len(skips),
        remarks=tuple(dict.fromkeys(remarks)),
    )
