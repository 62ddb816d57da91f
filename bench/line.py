"""One line of the results: a value, its yardstick, and whether it is within its budget."""

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
    """What the yardstick measures, in the same unit."""
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
