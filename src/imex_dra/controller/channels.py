"""Which ComputeDomain has which channel of a partition. Pure, and the most guarded code there is: one number
given twice would open one workload's memory to another.

Channel 0 is never given: it is what legacy set-ups hand to everybody. A number that was given back rests, because
a claim that vanished does not prove that a process is gone; when it is free again, says `recall`.
"""

from collections.abc import Callable, Iterable, Set
from datetime import datetime
from typing import NamedTuple

from msgspec import structs

from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState, DomainReference
from imex_dra.base.clock import rfc3339
from imex_dra.controller.record import rested

FIRST = 1


class Want(NamedTuple):
    domain: DomainReference
    all: bool = False


class Channels(NamedTuple):
    assignments: tuple[ChannelAssignment, ...]
    last: int = 0
    """The number that was given last."""
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
    last: int = 0,
    recall: int = 0,
    free: Callable[[ChannelAssignment], bool] = lambda entry: False,
) -> Channels:
    """UIDs: `released` hold nothing any more, `refused` may not open all. `count`: how many channels there are.

    `recall` is the record's before this decision: what is given back now rests until a higher one is answered.
    """
    wants = list(wants)
    rights = _rights(wants, refused)
    last = last or max((entry.channel for entry in current), default=FIRST - 1)
    kept = [entry for entry in current if not free(entry)]
    kept = [rested(entry, recall, now) if entry.compute_domain.uid in released else entry for entry in kept]
    kept = [_with_right(entry, rights) for entry in kept]
    holders = {entry.compute_domain.uid for entry in kept if entry.state is ChannelState.ASSIGNED}
    assigned: list[ChannelAssignment] = []
    unserved: list[DomainReference] = []
    for want in sorted(wants, key=lambda want: want.domain.uid):
        if want.domain.uid in holders or want.domain.uid in released:
            continue
        channel = _next_free([*kept, *assigned], last, count)
        if channel is None:
            unserved.append(want.domain)
            continue
        last = channel
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
    return Channels((*kept, *assigned), last, tuple(assigned), tuple(unserved))


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


def _next_free(entries: list[ChannelAssignment], last: int, count: int) -> int | None:
    """Round-robin, so that a number given back stays unused for as long as possible."""
    taken = {entry.channel for entry in entries}
    candidates = (*range(last + 1, count), *range(FIRST, min(last + 1, count)))
    return next((channel for channel in candidates if channel not in taken), None)
