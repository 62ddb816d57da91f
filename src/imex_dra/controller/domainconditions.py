"""The conditions of a ComputeDomain, each with its cause in one sentence. Pure.

A condition is computed from what is true now. Two also depend on the previous status: Degraded, because only a
ComputeDomain that was Ready can degrade; and Ready without pods, because "no pod yet" is wrong after a job.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from imex_dra.api import domainreasons, partitionreasons
from imex_dra.api.computedomain import (
    ACCEPTED,
    CHANNEL_ASSIGNED,
    DEGRADED,
    DELETING,
    READY,
    SPANS_PARTITIONS,
    TEMPLATE_READY,
    ComputeDomain,
    DomainNode,
    Readiness,
)
from imex_dra.api.meta import Condition, Key, is_deleting, key_of
from imex_dra.api.nvlinkpartition import NVLinkPartition
from imex_dra.api.reasons import Explanation, Reason
from imex_dra.api.views import ResourceClaim
from imex_dra.controller.domainnodes import Reports, channel_obstacle, channel_of
from imex_dra.kube.conditions import find_condition, with_condition

STARTING = frozenset({Reason.NO_CHANNEL_ASSIGNED, Reason.CLAIMS_NOT_PREPARED, Reason.CLAIMS_WAITING})
"""Reasons that every pod goes through when it starts. They are no failure: no Event, and not Degraded."""


class DomainInputs(NamedTuple):
    """What the status of a ComputeDomain depends on."""

    domain: ComputeDomain
    claims: Sequence[ResourceClaim]
    """Its allocated claims."""
    partitions: Sequence[NVLinkPartition]
    """Those with a node of these claims, and those in which the ComputeDomain has a channel."""
    reports: Reports
    """Of the nodes of the claims, and of all members of the partitions."""
    waiting: Explanation | None = None
    """Set if claims wait for the scheduler."""
    template_problem: Explanation | None = None
    refusal: Explanation | None = None
    deletion: Explanation | None = None
    """What a deletion waits for."""
    max_channels_per_namespace: int = 0
    """In each partition; 0 for no limit."""


class Verdict(NamedTuple):
    """Whether a condition holds, and why. None instead of a verdict: the condition is not present."""

    status: bool
    reason: str
    message: str


def _verdict(status: bool, explanation: Explanation) -> Verdict:
    return Verdict(status, explanation.reason, explanation.message())


def conditions(
    inputs: DomainInputs, entries: Sequence[DomainNode], ended_at: str, now: datetime
) -> tuple[Condition, ...]:
    """`ended_at`: when the last claim ended, if there was one and there is none now."""
    before = inputs.domain.status.conditions
    ready = _ready(inputs, entries, ended_at)
    verdicts = {
        READY: ready,
        TEMPLATE_READY: _template_ready(inputs),
        CHANNEL_ASSIGNED: _channel_assigned(inputs, entries, ended_at),
        DEGRADED: _degraded(find_condition(before, DEGRADED), entries, ready),
        SPANS_PARTITIONS: _spans_partitions(inputs, find_condition(before, SPANS_PARTITIONS), entries),
        ACCEPTED: _accepted(inputs.refusal, find_condition(before, ACCEPTED)),
        DELETING: _verdict(True, inputs.deletion) if inputs.deletion else None,
    }
    absent = {type_ for type_, verdict in verdicts.items() if verdict is None}
    after = tuple(condition for condition in before if condition.type not in absent)
    generation = inputs.domain.metadata.generation
    for type_, verdict in verdicts.items():
        if verdict is not None:
            after = with_condition(after, type_, **verdict._asdict(), now=now, generation=generation)
    return after


def failures(entries: Sequence[DomainNode]) -> list[DomainNode]:
    """The nodes that are not ready for another reason than that a pod starts."""
    return [e for e in entries if e.status is Readiness.NOT_READY and e.reason not in STARTING]


def _ready(inputs: DomainInputs, entries: Sequence[DomainNode], ended_at: str) -> Verdict:
    domain, wanted = inputs.domain, inputs.domain.spec.num_nodes
    not_ready = [entry for entry in entries if entry.status is Readiness.NOT_READY]
    problem = inputs.template_problem
    if inputs.refusal is not None:
        return _verdict(False, inputs.refusal)
    # Pods that hold a claim already do not need the template, and a template without an owner still works.
    if problem is not None and not entries and problem.reason is not Reason.TEMPLATE_ORPHANED:
        return _verdict(False, problem)
    if failures(entries) or (not_ready and inputs.waiting is None):
        causes = [entry.message for entry in (*failures(entries), *not_ready)]
        unique = list(dict.fromkeys(causes))
        return _verdict(
            False, domainreasons.nodes_not_ready(count=len(not_ready), total=len(entries), causes=unique)
        )
    if inputs.waiting is not None:
        return _verdict(False, inputs.waiting)
    if not entries:
        return _verdict(False, _no_pods(domain, ended_at))
    if len(entries) < wanted:
        return _verdict(False, domainreasons.fewer_nodes(count=len(entries), wanted=wanted))
    return _verdict(True, domainreasons.nodes_ready(count=len(entries)))


def _no_pods(domain: ComputeDomain, ended_at: str) -> Explanation:
    if ended_at:
        return domainreasons.pods_ended(ended_at=ended_at)
    return domainreasons.no_pods_yet(template=str(_template_key(domain)))


def _template_ready(inputs: DomainInputs) -> Verdict:
    domain, problem = inputs.domain, inputs.template_problem
    if is_deleting(domain):
        return _verdict(False, _cause(domainreasons.compute_domain_deleting(domain=str(key_of(domain)))))
    return _verdict(problem is None, problem or domainreasons.template_ready(template=str(_template_key(domain))))


def _channel_assigned(inputs: DomainInputs, entries: Sequence[DomainNode], ended_at: str) -> Verdict:
    domain, limit = inputs.domain, inputs.max_channels_per_namespace
    if inputs.refusal is not None:
        return _verdict(False, inputs.refusal)
    needed = {entry.clique_id for entry in entries}
    missing = [
        obstacle
        for partition in inputs.partitions
        if partition.metadata.name in needed
        and (obstacle := channel_obstacle(partition, domain, inputs.reports, limit))
    ]
    if missing:
        return _verdict(False, _joined(missing))
    held = [
        partitionreasons.channel_assigned(channel=channel, partition=partition.metadata.name)
        for partition in inputs.partitions
        if (channel := channel_of(partition, domain)) is not None
    ]
    if held:
        return _verdict(True, _joined(held))
    outside = [entry.name for entry in entries if entry.reason == Reason.NO_FABRIC]
    if outside and len(outside) == len(entries):
        return _verdict(False, domainreasons.no_fabric(nodes=outside))
    if entries:
        # None of its nodes is a member of a partition; each entry says why.
        return Verdict(False, entries[0].reason, entries[0].message)
    return _verdict(False, inputs.waiting or _no_pods(domain, ended_at))


def _degraded(old: Condition | None, entries: Sequence[DomainNode], ready: Verdict) -> Verdict | None:
    if ready.status:
        return ready._replace(status=False)
    if not entries or old is None:
        return None
    failed = failures(entries)
    if failed:
        causes = list(dict.fromkeys(entry.message for entry in failed))
        return _verdict(True, domainreasons.nodes_not_ready(count=len(failed), total=len(entries), causes=causes))
    # Another pod starts. Whether the ComputeDomain is degraded is decided when it has started.
    return Verdict(old.status == "True", old.reason, old.message)


def _spans_partitions(
    inputs: DomainInputs, old: Condition | None, entries: Sequence[DomainNode]
) -> Verdict | None:
    partitions = sorted({entry.clique_id for entry in entries} - {""})
    if len(partitions) > 1:
        return _verdict(True, domainreasons.several_partitions(partitions=partitions))
    return _verdict(False, domainreasons.one_partition()) if old is not None else None


def _accepted(refusal: Explanation | None, old: Condition | None) -> Verdict | None:
    """The condition is added when the ComputeDomain is refused, and then stays."""
    if refusal is None and old is None:
        return None
    return _verdict(refusal is None, refusal or domainreasons.accepted())


def _joined(explanations: Sequence[Explanation]) -> Explanation:
    return Explanation(explanations[0].reason, "; ".join(each.message() for each in explanations))


def _cause(explanation: Explanation) -> Explanation:
    """Without the next step, which is for the user of a pod."""
    return explanation._replace(next_step="")


def _template_key(domain: ComputeDomain) -> Key:
    return Key(domain.metadata.namespace, domain.template_name)
