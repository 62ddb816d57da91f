"""Which ComputeDomain has which channel of a partition. Pure, and the most guarded code there is: one number
given twice would open one workload's memory to another.

Channel 0 is never given: it is what legacy set-ups hand to everybody. A number that was given back rests, because
a claim that vanished does not prove that a process is gone; resting numbers are not given again.
"""

from collections.abc import Iterable, Set
from datetime import datetime
from typing import NamedTuple

from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, DomainReference
from imex_dra.base.clock import rfc3339

FIRST = 1


class Want(NamedTuple):
    domain: DomainReference
    all: bool = False


class Channels(NamedTuple):
    assignments: tuple[ChannelAssignment, ...]
    assigned: tuple[ChannelAssignment, ...] = ()
    """The new ones among them."""
    unserved: tuple[DomainReference, ...] = ()
    """Who got none, because none is free."""


def plan_channels(
    current: tuple[ChannelAssignment, ...],
    wants: Iterable[Want],
    *,
    released: Set[str],
    refused: Set[str] = frozenset(),
    count: int,
    now: datetime,
) -> Channels:
    """UIDs: `released` hold nothing any more, `refused` may not open all. `count`: how many channels there are."""
    wants = list(wants)
    rights = _rights(wants, refused)
    kept = [_rested(entry, now) if entry.compute_domain.uid in released else entry for entry in current]
    kept = [_with_right(entry, rights) for entry in kept]
    holders = {entry.compute_domain.uid for entry in kept if entry.state is ChannelState.ASSIGNED}
    assigned: list[ChannelAssignment] = []
    unserved: list[DomainReference] = []
    for want in sorted(wants, key=lambda want: want.domain.uid):
        if want.domain.uid in holders or want.domain.uid in released:
            continue
        channel = _next_free([*kept, *assigned], count)
        if channel is None:
            unserved.append(want.domain)
            continue
        holders.add(want.domain.uid)
        assigned.append(
            ChannelAssignment(
                channel=channel,
                state=ChannelState.ASSIGNED,
                compute_domain=want.domain,
                since=rfc3339(now),
                all=rights[want.domain.uid],
            )
        )
    return Channels((*kept, *assigned), tuple(assigned), tuple(unserved))


def rebuilt(
    partition: str, domains: Iterable[ComputeDomain], cards: Iterable[NVLinkNode], now: datetime
) -> tuple[ChannelAssignment, ...]:
    """The channels of a partition whose record was lost, from what ComputeDomains and cards say.

    A number that two claim, or that a node holds for nobody we know, rests.
    """
    holders: dict[int, list[DomainReference]] = {}
    for domain in domains:
        reference = DomainReference(domain.metadata.namespace, domain.metadata.name, domain.metadata.uid)
        for held in domain.status.partitions:
            if held.name == partition:
                holders.setdefault(held.channel, []).append(reference)
    for channel in {channel for card in cards for channel in card.status.held_channels}:
        holders.setdefault(channel, [])
    return tuple(_recovered(channel, claimants, now) for channel, claimants in sorted(holders.items()))


def _recovered(channel: int, claimants: list[DomainReference], now: datetime) -> ChannelAssignment:
    certain = len(claimants) == 1
    return ChannelAssignment(
        channel=channel,
        state=ChannelState.ASSIGNED if certain else ChannelState.RESTING,
        compute_domain=claimants[0] if certain else DomainReference("", "", ""),
        since=rfc3339(now),
        released_at="" if certain else rfc3339(now),
    )


def _rights(wants: Iterable[Want], refused: Set[str]) -> dict[str, bool]:
    """Who may open all channels, as far as it is known now; the right goes with the administrator's word."""
    rights = dict.fromkeys(refused, False)
    for want in wants:
        rights[want.domain.uid] = want.all and rights.get(want.domain.uid, True)
    return rights


def _with_right(entry: ChannelAssignment, rights: dict[str, bool]) -> ChannelAssignment:
    right = rights.get(entry.compute_domain.uid, entry.all)
    if entry.state is ChannelState.RESTING or right == entry.all:
        return entry
    return structs.replace(entry, all=right)


def _next_free(entries: list[ChannelAssignment], count: int) -> int | None:
    """Round-robin, so that a number given back stays unused for as long as possible."""
    taken = {entry.channel for entry in entries}
    last = max(taken, default=FIRST - 1)
    candidates = (*range(last + 1, count), *range(FIRST, min(last, count)))
    return next((channel for channel in candidates if channel not in taken), None)


def _rested(entry: ChannelAssignment, now: datetime) -> ChannelAssignment:
    if entry.state is ChannelState.RESTING:
        return entry
    return structs.replace(entry, state=ChannelState.RESTING, released_at=rfc3339(now))
