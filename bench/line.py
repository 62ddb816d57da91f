"""One figure: what was measured, beside what, and whether it keeps its budget."""

from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    GREEN = "green"
    RED = "red"
    NONE = "none"


class Line(Struct, frozen=True):
    name: str
    value: float
    unit: str
    yardstick: float
    yardstick_is: str
    """What was measured beside it, in the same unit."""
    budget: float | None
    verdict: Verdict


def line(
    name: str, value: float, unit: str, *, yardstick: float, yardstick_is: str, at_most: float | None = None
) -> Line:
    return Line(name, value, unit, yardstick, yardstick_is, at_most, _verdict(value, at_most))


def _verdict(value: float, at_most: float | None) -> Verdict:
    if at_most is None:
        return Verdict.NONE
    return Verdict.GREEN if value <= at_most else Verdict.RED
