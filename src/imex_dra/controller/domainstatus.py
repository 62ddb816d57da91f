"""The status of a ComputeDomain, from its claims and the nodes they are on. Pure.

See docs/design/status.md for what each condition means, and when a status is written.
"""

from collections.abc import Sequence
from datetime import datetime

from imex_dra.api.computedomain import (
    DELETING,
    MAX_LISTED_NODES,
    READY,
    ComputeDomain,
    ComputeDomainStatus,
    DomainNode,
    DomainPartition,
    DomainSummary,
    Phase,
    Readiness,
)
from imex_dra.api.meta import Condition, is_deleting
from imex_dra.api.reasons import Reason
from imex_dra.base.clock import rfc3339
from imex_dra.controller.domainconditions import STARTING, DomainInputs, conditions, failures
from imex_dra.controller.domainnodes import channel_of, domain_nodes
from imex_dra.kube.conditions import find_condition


def domain_status(inputs: DomainInputs, now: datetime) -> ComputeDomainStatus:
    domain = inputs.domain
    limit = inputs.max_channels_per_namespace
    entries = domain_nodes(domain, inputs.claims, inputs.partitions, inputs.reports, max_per_namespace=limit)
    held = _partitions(inputs, entries)
    ended_at = _claims_ended_at(inputs, held, now)
    after = conditions(inputs, entries, ended_at, now)
    ready, deleting = find_condition(after, READY), find_condition(after, DELETING)
    assert ready is not None
    return ComputeDomainStatus(
        status=Readiness.READY if ready.status == "True" else Readiness.NOT_READY,
        nodes=tuple(entries[:MAX_LISTED_NODES]),
        nodes_omitted=max(0, len(entries) - MAX_LISTED_NODES),
        partitions=held,
        claims_ended_at=ended_at,
        conditions=after,
        summary=_summary(domain, entries, held, ready, deleting),
    )


def is_starting(status: ComputeDomainStatus) -> bool:
    """Whether it is not Ready only because pods are being scheduled or claims are being prepared."""
    ready = find_condition(status.conditions, READY)
    if ready is None or ready.status == "True" or failures(status.nodes):
        return False
    return ready.reason in (*STARTING, Reason.NODES_NOT_READY, Reason.FEWER_NODES)


def _claims_ended_at(inputs: DomainInputs, held: Sequence[DomainPartition], now: datetime) -> str:
    before = inputs.domain.status
    if inputs.claims:
        return ""
    # A channel stays assigned until the ComputeDomain is deleted. So it proves that pods have held claims, even if
    # they ended before a status listed their nodes.
    had_claims = bool(before.nodes or held)
    return before.claims_ended_at or (rfc3339(now) if had_claims else "")


def _partitions(inputs: DomainInputs, entries: Sequence[DomainNode]) -> tuple[DomainPartition, ...]:
    held = []
    for partition in inputs.partitions:
        name, channel = partition.metadata.name, channel_of(partition, inputs.domain)
        if channel is not None:
            nodes = [entry for entry in entries if entry.clique_id == name]
            ready = sum(entry.status is Readiness.READY for entry in nodes)
            held.append(DomainPartition(name, channel, len(nodes), ready))
    return tuple(held)


def _summary(
    domain: ComputeDomain,
    entries: Sequence[DomainNode],
    partitions: Sequence[DomainPartition],
    ready: Condition,
    deleting: Condition | None,
) -> DomainSummary:
    count = sum(entry.status is Readiness.READY for entry in entries)
    total = max(len(entries), domain.spec.num_nodes)
    channels = ",".join(str(partition.channel) for partition in partitions)
    return DomainSummary(
        status=_phase(domain, ready),
        message=(deleting or ready).message,
        nodes=f"{count}/{total}",
        partitions=str(len(partitions)),
        channels=channels,
    )


def _phase(domain: ComputeDomain, ready: Condition) -> Phase:
    if is_deleting(domain):
        return Phase.DELETING
    if ready.reason in (Reason.NO_PODS_YET, Reason.PODS_ENDED):
        return Phase.NO_PODS
    return Phase.READY if ready.status == "True" else Phase.NOT_READY
