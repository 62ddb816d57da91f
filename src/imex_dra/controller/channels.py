"""Which ComputeDomain has which channel of a partition. Pure, and the most guarded code there is: one number
given twice would open one workload's memory to another.

Channel 0 is never given: it is what legacy set-ups hand to everybody. A number that was given back rests, because
a claim that vanished does not prove that a process is gone; resting numbers are not given again.
"""

from collections.abc import Iterable, Set
from datetime import datetime
from typing import NamedTuple

from msgspec import structs

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
    count: int,
    now: datetime,
) -> Channels:
    """`released` are UIDs of ComputeDomains that hold nothing any more; `count` is how many channels there are."""
    kept = [_rested(entry, now) if entry.compute_domain.uid in released else entry for entry in current]
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
                all=want.all,
            )
        )
    return Channels((*kept, *assigned), tuple(assigned), tuple(unserved))


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
