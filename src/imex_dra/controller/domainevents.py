"""Which Events a change of a ComputeDomain's status leads to. Pure.

The budget is one Event per distinct failure, and none for a pod that starts. So a failure is announced when its
node and reason are new, and Ready only for the first time with these pods, or after a failure.
"""

from typing import NamedTuple

from imex_dra.api import domainreasons
from imex_dra.api.computedomain import (
    ACCEPTED,
    DEGRADED,
    DELETING,
    READY,
    SPANS_PARTITIONS,
    TEMPLATE_READY,
    ComputeDomainStatus,
)
from imex_dra.api.meta import Condition
from imex_dra.api.reasons import Reason
from imex_dra.controller.domainconditions import failures
from imex_dra.kube.conditions import find_condition

_OF_THE_PARTITION = frozenset({Reason.CHANNELS_EXHAUSTED, Reason.CHANNEL_LIMIT})
"""Reasons that the reconciler of the partition announces."""


class Announcement(NamedTuple):
    reason: Reason
    message: str
    warning: bool = True


def announcements(before: ComputeDomainStatus, after: ComputeDomainStatus) -> list[Announcement]:
    found = [
        _turned(before, after, TEMPLATE_READY, "False"),
        _turned(before, after, ACCEPTED, "False"),
        _ready(before, after),
        _failed(before, after),
        _turned(before, after, SPANS_PARTITIONS, "True"),
        _without_fabric(before, after),
        _daemons_restarted(before, after),
        _turned(before, after, DELETING, "True", warning=False),
    ]
    return [announcement for announcement in found if announcement is not None]


def readiness_changed(before: ComputeDomainStatus, after: ComputeDomainStatus) -> Condition | None:
    """The condition Ready, if its status or reason is new."""
    old, new = find_condition(before.conditions, READY), find_condition(after.conditions, READY)
    same = old is not None and new is not None and (old.status, old.reason) == (new.status, new.reason)
    return None if same else new


def _turned(
    before: ComputeDomainStatus, after: ComputeDomainStatus, type_: str, status: str, *, warning: bool = True
) -> Announcement | None:
    """Once for each reason: a message also changes with every pod that ends."""
    old, new = find_condition(before.conditions, type_), find_condition(after.conditions, type_)
    if new is None or new.status != status:
        return None
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return None
    # While it is being deleted, a ComputeDomain without a template is as it should be.
    return None if new.reason == Reason.COMPUTE_DOMAIN_DELETING else _announcement(new, warning)


def _ready(before: ComputeDomainStatus, after: ComputeDomainStatus) -> Announcement | None:
    degraded, ready = find_condition(before.conditions, DEGRADED), find_condition(after.conditions, READY)
    if ready is None or ready.status != "True":
        return None
    if degraded is None:
        return _announcement(ready, warning=False)
    if degraded.status == "False":
        return None
    # The time makes the message unique: the same Event would only be counted, and the end of this failure missing.
    since = degraded.last_transition_time
    recovered = domainreasons.recovered(state=ready.message, since=since)
    return Announcement(recovered.reason, recovered.message(), warning=False)


def _failed(before: ComputeDomainStatus, after: ComputeDomainStatus) -> Announcement | None:
    failed = {(e.name, e.reason) for e in failures(after.nodes) if e.reason not in _OF_THE_PARTITION}
    known = {(entry.name, entry.reason) for entry in failures(before.nodes)}
    ready = find_condition(after.conditions, READY)
    return _announcement(ready, warning=True) if ready is not None and failed - known else None


def _without_fabric(before: ComputeDomainStatus, after: ComputeDomainStatus) -> Announcement | None:
    known = {entry.name for entry in before.nodes if entry.reason == Reason.NO_FABRIC}
    new = [e.name for e in after.nodes if e.reason == Reason.NO_FABRIC and e.name not in known]
    return Announcement(Reason.NO_FABRIC, domainreasons.no_fabric(nodes=new).message()) if new else None


def _daemons_restarted(before: ComputeDomainStatus, after: ComputeDomainStatus) -> Announcement | None:
    """Not for the first daemon, nor for one that had no claim of the ComputeDomain before: the previous status has
    no time for these.
    """
    known = {entry.name: entry.imex_started_at for entry in before.nodes if entry.imex_started_at}
    nodes = [e.name for e in after.nodes if e.imex_started_at != known.get(e.name, e.imex_started_at)]
    if not nodes:
        return None
    restarted = domainreasons.daemon_restarted(nodes=sorted(nodes))
    return Announcement(restarted.reason, restarted.message())


def _announcement(condition: Condition, warning: bool) -> Announcement:
    return Announcement(Reason(condition.reason), condition.message, warning)
