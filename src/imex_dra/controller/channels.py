"""Which ComputeDomain has which channel of a partition: assignment, release and reuse. Pure.

Two ComputeDomains with the same channel can map each other's memory, so a channel is assigned to one
ComputeDomain at a time. Channel 0 is never assigned: legacy setups give it to every container.

A released channel is not reusable at once, because a deleted claim does not prove that its processes have ended:
`epochs` decides when it is. See docs/design/channel-reuse.md.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from datetime import datetime
from itertools import chain
from typing import NamedTuple

from msgspec import structs

from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, DomainReference
from imex_dra.base.clock import rfc3339

FIRST_CHANNEL = 1


class ChannelDemand(NamedTuple):
    """A ComputeDomain with an allocated claim in the partition."""

    domain: DomainReference
    all_channels: bool = False


class ChannelPlan(NamedTuple):
    assignments: tuple[ChannelAssignment, ...]
    last_channel: int = 0
    """Channel that was assigned last."""
    assigned: tuple[ChannelAssignment, ...] = ()
    """The assignments that this plan adds."""
    unmet_demand: tuple[DomainReference, ...] = ()
    """ComputeDomains that get no channel because none is free."""
    over_limit: tuple[DomainReference, ...] = ()
    """ComputeDomains that get no channel because their namespace has as many as it may have."""


def plan_channels(
    current: tuple[ChannelAssignment, ...],
    demand: Iterable[ChannelDemand],
    *,
    released_domains: Set[str],
    refused_domains: Set[str] = frozenset(),
    channel_count: int,
    now: datetime,
    last_channel: int = 0,
    epoch: int = 0,
    reusable: Set[int] = frozenset(),
    max_per_namespace: int = 0,
) -> ChannelPlan:
    """`released_domains`: UIDs of ComputeDomains that no longer need their channel. `refused_domains`: UIDs of
    those that may not open all channels. `epoch`: the partition's epoch before this plan. `reusable`: released
    channels that may be assigned again. `max_per_namespace`: how many channels the ComputeDomains of one namespace
    may have; 0 for no limit.
    """
    demand = sorted(demand, key=lambda one: one.domain.uid)
    permissions = _all_channels_permissions(demand, refused_domains)
    kept = [entry for entry in current if entry.channel not in reusable]
    # A release counts for the epoch before this plan. If this plan also increments the epoch, every status of the
    # new epoch shows the channel as Released, so acknowledging the new epoch covers this release.
    kept = [
        release(entry, epoch, now) if entry.compute_domain.uid in released_domains else entry for entry in kept
    ]
    kept = [_with_permission(entry, permissions) for entry in kept]
    served = {entry.compute_domain.uid for entry in kept if entry.state is ChannelState.ASSIGNED}
    settled = served | released_domains
    waiting = {one.domain.uid: one.domain for one in demand if one.domain.uid not in settled}
    last_channel = last_channel or max((entry.channel for entry in current), default=FIRST_CHANNEL - 1)
    assigned: list[ChannelAssignment] = []
    unmet_demand: list[DomainReference] = []
    over_limit: list[DomainReference] = []
    # Released channels do not count: whether they can be reused is not up to the namespace.
    in_namespace = Counter(e.compute_domain.namespace for e in kept if e.state is ChannelState.ASSIGNED)
    taken = {entry.channel for entry in kept}
    for uid, domain in waiting.items():
        if max_per_namespace and in_namespace[domain.namespace] >= max_per_namespace:
            over_limit.append(domain)
            continue
        channel = _next_free(taken, last_channel, channel_count)
        if channel is None:
            unmet_demand.append(domain)
            continue
        last_channel = channel
        taken.add(channel)
        in_namespace[domain.namespace] += 1
        assigned.append(
            ChannelAssignment(
                channel,
                ChannelState.ASSIGNED,
                domain,
                rfc3339(now),
                all_channels=permissions[uid],
                assigned_epoch=epoch,
            )
        )
    return ChannelPlan((*kept, *assigned), last_channel, tuple(assigned), tuple(unmet_demand), tuple(over_limit))


def release(entry: ChannelAssignment, epoch: int, now: datetime) -> ChannelAssignment:
    """A channel that is released already keeps the epoch of its release."""
    if entry.state is ChannelState.RELEASED:
        return entry
    return structs.replace(entry, state=ChannelState.RELEASED, released_at=rfc3339(now), released_epoch=epoch)


def _all_channels_permissions(demand: Iterable[ChannelDemand], refused_domains: Set[str]) -> dict[str, bool]:
    """By UID: whether the ComputeDomain may open all channels. Follows the namespace label in both directions."""
    permissions = dict.fromkeys(refused_domains, False)
    for one in demand:
        permissions[one.domain.uid] = one.all_channels and permissions.get(one.domain.uid, True)
    return permissions


def _with_permission(entry: ChannelAssignment, permissions: Mapping[str, bool]) -> ChannelAssignment:
    if entry.state is ChannelState.RELEASED:
        return entry
    permission = permissions.get(entry.compute_domain.uid, entry.all_channels)
    return entry if permission == entry.all_channels else structs.replace(entry, all_channels=permission)


def _next_free(taken: Set[int], last_channel: int, channel_count: int) -> int | None:
    """Round-robin, so that a released channel stays unused for as long as possible."""
    following = range(last_channel + 1, channel_count)
    wrapped = range(FIRST_CHANNEL, min(last_channel + 1, channel_count))
    return next((channel for channel in chain(following, wrapped) if channel not in taken), None)
