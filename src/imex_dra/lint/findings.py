"""A finding: which rule an object breaks, where, why, and what to do next."""

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    ERROR = "error"
    """It cannot work, or opens memory to other workloads."""
    WARNING = "warning"
    """It works only by chance, or only on some clusters."""
    NOTE = "note"
    """Worth knowing, or impossible to check without the cluster."""


class Finding(Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    """Of the rule. An id never changes its meaning."""
    severity: Severity
    file: str
    line: int
    object: str
    """Kind, and namespace/name."""
    message: str
    next_step: str
