"""NVML's fabric health mask in words, and how bad it is. Pure.

The mask is fields of two or four bits; 0 always means that this driver or board can't tell. What recovers by
itself is worth waiting for; what only makes NVLink slower is worth saying; the rest needs a person.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

_UNHEALTHY, _LIMITED = 2, 3
"""`NVML_GPU_FABRIC_HEALTH_SUMMARY_*`; 0: not supported, 1: healthy."""


class Severity(IntEnum):
    """The worst one counts."""

    FINE = 0
    LIMITED = 1
    RECOVERING = 2
    BREAKING = 3


class Finding(NamedTuple):
    severity: Severity
    words: str


class _Field(NamedTuple):
    shift: int
    width: int
    findings: dict[int, Finding]


_TRUE, _FALSE = 1, 2

_MISTAKES = {
    2: "its system GUID is not the one the fabric manager expects",
    3: "its chassis serial number is not the one the fabric manager expects",
    4: "it is in no NVLink partition",
    5: "it has too few NVLinks",
    6: "its firmware does not fit the fabric",
    7: "its location in the rack is invalid",
    8: "its state is invalid",
}

_FIELDS = (
    _Field(0, 0x3, {_TRUE: Finding(Severity.LIMITED, "its NVLink bandwidth is degraded")}),
    _Field(2, 0x3, {_TRUE: Finding(Severity.RECOVERING, "its NVLink routes are being recovered")}),
    _Field(4, 0x3, {_TRUE: Finding(Severity.BREAKING, "its NVLink routes are unhealthy")}),
    _Field(6, 0x3, {_TRUE: Finding(Severity.RECOVERING, "it recovers from an access time-out")}),
    _Field(
        8,
        0xF,
        {
            value: Finding(
                Severity.BREAKING, f"it is configured wrongly: {_MISTAKES.get(value, f'cause {value}')}"
            )
            for value in range(2, 16)
        },
    ),
    _Field(12, 0x3, {_FALSE: Finding(Severity.BREAKING, "no NVLink partition is assigned to it")}),
    _Field(14, 0x3, {_FALSE: Finding(Severity.LIMITED, "it has lost its fabric manager")}),
)

_SUMMARIES = {
    _UNHEALTHY: Finding(Severity.BREAKING, "the driver calls its fabric unhealthy"),
    _LIMITED: Finding(Severity.LIMITED, "the driver calls its fabric limited in capacity"),
}


def diagnosis(mask: int, summary: int) -> Finding:
    """All findings in one; the driver's summary counts only for what the mask does not explain."""
    found = list(_findings(mask))
    overall = _SUMMARIES.get(summary)
    if overall is not None and not any(finding.severity >= _explaining(overall) for finding in found):
        found.append(overall)
    severity = max((finding.severity for finding in found), default=Severity.FINE)
    return Finding(severity, " and ".join(finding.words for finding in found))


def _findings(mask: int) -> Iterator[Finding]:
    for field in _FIELDS:
        finding = field.findings.get(mask >> field.shift & field.width)
        if finding is not None:
            yield finding


def _explaining(overall: Finding) -> Severity:
    """A GPU that recovers is unhealthy meanwhile."""
    return min(overall.severity, Severity.RECOVERING)
