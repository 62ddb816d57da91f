"""Interprets the fabric health mask and health summary of NVML.

The mask consists of fields of two or four bits. The value 0 always means that this driver or GPU does not report
the field. Conditions that the hardware recovers from are worth waiting for; reduced bandwidth is worth
reporting; the rest needs an administrator.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple


class Severity(IntEnum):
    """Ordered: of several findings the highest severity counts."""

    HEALTHY = 0
    LIMITED = 1
    """The GPU works, with reduced bandwidth or without its fabric manager."""
    RECOVERING = 2
    BROKEN = 3


class Finding(NamedTuple):
    severity: Severity
    message: str


class _Field(NamedTuple):
    """A field of `nvmlGpuFabricInfo_v3_t.healthMask`, with the values that mean trouble."""

    shift: int
    width: int
    findings: dict[int, Finding]


_TRUE, _FALSE = 1, 2

_INCORRECT_CONFIGURATION = {
    2: "its system GUID does not match the fabric manager's configuration",
    3: "its chassis serial number does not match the fabric manager's configuration",
    4: "it is not in an NVLink partition",
    5: "it has too few NVLinks",
    6: "its firmware is not compatible with the fabric",
    7: "its location in the rack is invalid",
    8: "its GPU state is invalid",
}


def _incorrect_configuration(value: int) -> Finding:
    """Values that a later driver adds are reported by their number."""
    cause = _INCORRECT_CONFIGURATION.get(value, f"NVML gives cause {value}")
    return Finding(Severity.BROKEN, f"its fabric configuration is incorrect: {cause}")


_FIELDS = (
    _Field(0, 0x3, {_TRUE: Finding(Severity.LIMITED, "its NVLink bandwidth is degraded")}),
    _Field(2, 0x3, {_TRUE: Finding(Severity.RECOVERING, "its NVLink routes are being recovered")}),
    _Field(4, 0x3, {_TRUE: Finding(Severity.BROKEN, "its NVLink routes are unhealthy")}),
    _Field(6, 0x3, {_TRUE: Finding(Severity.RECOVERING, "it is recovering from a memory access timeout")}),
    _Field(8, 0xF, {value: _incorrect_configuration(value) for value in range(2, 16)}),
    _Field(12, 0x3, {_FALSE: Finding(Severity.BROKEN, "no NVLink partition is assigned to it")}),
    _Field(14, 0x3, {_FALSE: Finding(Severity.LIMITED, "it is disconnected from the global fabric manager")}),
)

_SUMMARIES = {
    2: Finding(Severity.BROKEN, "NVML reports its fabric health as unhealthy"),
    3: Finding(Severity.LIMITED, "NVML reports its fabric health as limited capacity"),
}
"""`NVML_GPU_FABRIC_HEALTH_SUMMARY_*`; 0 is not supported, 1 is healthy."""


def evaluate_health(mask: int, summary: int) -> Finding:
    """Combines all findings. The summary counts only if the mask does not explain it."""
    findings = list(_mask_findings(mask))
    overall = _SUMMARIES.get(summary)
    # The summary of a GPU that recovers is "unhealthy", too: RECOVERING in the mask explains it.
    if overall is not None and not any(f.severity >= min(overall.severity, Severity.RECOVERING) for f in findings):
        findings.append(overall)
    severity = max((finding.severity for finding in findings), default=Severity.HEALTHY)
    return Finding(severity, " and ".join(finding.message for finding in findings))


def _mask_findings(mask: int) -> Iterator[Finding]:
    for field in _FIELDS:
        finding = field.findings.get(mask >> field.shift & field.width)
        if finding is not None:
            yield finding
