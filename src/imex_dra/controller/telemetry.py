"""The metrics of `imex controller` that are read from its caches and queues when Prometheus asks. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sized

from imex_dra.api.computedomain import READY as DOMAIN_READY
from imex_dra.api.computedomain import Phase
from imex_dra.api.meta import OTHER_DRIVER, Condition, Key
from imex_dra.api.metrics import (
    DOMAINS,
    PARTITION_CHANNELS,
    PARTITION_MEMBERS,
    PARTITION_PROBLEMS,
    PARTITION_STATE,
)
from imex_dra.api.nvlinkpartition import (
    CHANNEL_SKEW,
    DELETION_BLOCKED,
    NOT_CONNECTED,
    VERSION_SKEW,
    ChannelState,
    MemberState,
    NVLinkPartition,
    PartitionState,
)
from imex_dra.api.reasons import Reason
from imex_dra.base.metrics import OTHER, Metric, Sample
from imex_dra.controller.caches import Caches
from imex_dra.controller.channels import FIRST_CHANNEL
from imex_dra.controller.plausibility import channel_count
from imex_dra.kube.conditions import find_condition

_PROBLEM_IF_TRUE = {NOT_CONNECTED, VERSION_SKEW, CHANNEL_SKEW, DELETION_BLOCKED, OTHER_DRIVER}
"""Conditions of an NVLinkPartition. All others report a problem with the status False."""

_NO_STATUS = "Unknown"
_PHASES = frozenset(Phase)
_REASONS = frozenset(Reason)


def controller_samples(caches: Caches, queues: Mapping[Metric, Sized]) -> Iterator[Sample]:
    for metric, queue in queues.items():
        yield Sample(metric, len(queue))
    for partition in caches.partitions.values():
        yield from partition_samples(partition, _channels(caches, partition))
    yield from domain_samples(caches)


def partition_samples(partition: NVLinkPartition, channels: int) -> Iterator[Sample]:
    """`channels`: how many the partition can assign."""
    name, status = partition.metadata.name, partition.status
    for state in PartitionState:
        yield Sample(PARTITION_STATE, float(status.summary.state is state), (name, state))
    members = Counter(member.state for member in status.members)
    for member in MemberState:
        yield Sample(PARTITION_MEMBERS, members[member], (name, member))
    entries = Counter(entry.state for entry in status.channels)
    taken = {entry.channel for entry in status.channels}
    for channel in ChannelState:
        yield Sample(PARTITION_CHANNELS, entries[channel], (name, channel.lower()))
    yield Sample(PARTITION_CHANNELS, max(0, channels - len(taken)), (name, "free"))
    reasons = {_known(condition.reason) for condition in status.conditions if is_problem(condition)}
    for reason in sorted(reasons):
        yield Sample(PARTITION_PROBLEMS, 1, (name, reason))


def is_problem(condition: Condition) -> bool:
    return condition.status == ("True" if condition.type in _PROBLEM_IF_TRUE else "False")


def domain_samples(caches: Caches) -> Iterator[Sample]:
    found: Counter[tuple[str, str]] = Counter()
    for domain in caches.compute_domains.values():
        ready = find_condition(domain.status.conditions, DOMAIN_READY)
        state = domain.status.summary.status
        found[state if state in _PHASES else _NO_STATUS, _known(ready.reason) if ready else _NO_STATUS] += 1
    for labels, count in sorted(found.items()):
        yield Sample(DOMAINS, count, labels)


def _known(reason: str) -> str:
    """A status that was forged, or written by a later version, must not add series without limit."""
    return reason if reason in _REASONS else OTHER


def _channels(caches: Caches, partition: NVLinkPartition) -> int:
    nodes = (member.node for member in partition.status.members)
    reports = {node: report for node in nodes if (report := caches.nvlink_nodes.get(Key("", node))) is not None}
    return channel_count(partition.status.members, reports) - FIRST_CHANNEL
