"""Results of pytest, for pages that list them."""

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


def parse(report: bytes, *, release: str, date: str) -> Result:
    """A JUnit report of pytest."""
    cases = list(ElementTree.fromstring(report).iter("testcase"))
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
