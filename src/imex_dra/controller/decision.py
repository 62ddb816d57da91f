"""All that is decided about one partition at one moment: members, channels, recall. Pure.

What is observed goes in as plain values, the next record comes out; `partitions` writes it. The order matters:
first whether this record is the last one, then who may join, then who gets which channel, and last whether to
ask the members what they hold.
"""

from collections.abc import Iterable, Mapping, Set
from datetime import datetime
from typing import NamedTuple

from msgspec import structs

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.meta import Condition
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import (
    CHANNELS_FREE,
    NODES_ADMITTED,
    ChannelAssignment,
    ChannelState,
    Member,
    MemberState,
    NVLinkPartitionStatus,
    PartitionState,
    PartitionSummary,
)
from imex_dra.api.reasons import Reason, sentence
from imex_dra.controller.admission import Doorkeeper
from imex_dra.controller.channels import Channels, Want, plan_channels
from imex_dra.controller.membership import Roster, plan_members
from imex_dra.controller.recall import Answers, in_the_way, is_free, next_recall
from imex_dra.controller.record import behind, completed, renewed, still_awaited
from imex_dra.kube.conditions import find_condition, with_condition

DEFAULT_CHANNEL_COUNT = 2048


class Seen(NamedTuple):
    """What the decision rests on."""

    name: PartitionId
    status: NVLinkPartitionStatus
    slots: int
    cards: Mapping[str, NVLinkNode]
    """Of everybody who is, was or wants to be a member, or holds a channel of this partition."""
    nodes: Set[str]
    """Which of them exist."""
    labelled: Set[str] = frozenset()
    domains: tuple[ComputeDomain, ...] = ()
    wants: Mapping[str, Set[Want]] = {}
    """By node: who has a claim there."""
    released: Set[str] = frozenset()
    refused: Set[str] = frozenset()
    users: Mapping[tuple[str, str], str] = {}

    @property
    def channel_count(self) -> int:
        counts = (card.status.channel_count for card in self.cards.values())
        return min(filter(None, counts), default=DEFAULT_CHANNEL_COUNT)


class Decision(NamedTuple):
    status: NVLinkPartitionStatus
    channels: Channels
    is_open: bool
    """Whether numbers may be given at all (`record`)."""


class _Record(NamedTuple):
    """The record that is carried on."""

    status: NVLinkPartitionStatus
    awaited: tuple[str, ...]
    entries: tuple[ChannelAssignment, ...]


def decide(seen: Seen, now: datetime) -> Decision:
    record = _record(seen, now)
    door = Doorkeeper(seen.name, record.status.recall, record.entries, seen.users)
    roster = _roster(seen, record, door)
    members = {member.node for member in (*record.status.members, *roster.members)}
    answers = Answers(seen.name, tuple(sorted(members)), seen.cards)
    record = _closed_for_old_lists(seen, record, roster)
    late = behind(record.status, roster.members, seen.cards)
    open_ = not record.awaited and not late
    channels = _channels(seen, record, roster, answers, open_=open_, now=now)
    recall = next_recall(
        record.status.recall,
        channels.assignments,
        answers,
        count=seen.channel_count,
        in_vain=bool(channels.unserved) and open_,
    )
    conditions = _channels_condition(seen, record.awaited, late, recall, channels, answers, now)
    status = NVLinkPartitionStatus(
        generation=roster.generation,
        members=roster.members,
        recall=recall,
        awaited=record.awaited,
        open_generation=0 if open_ else record.status.open_generation,
        last_channel=channels.last,
        channels=channels.assignments,
        conditions=_admission_condition(seen, conditions, door, roster, now),
        summary=_summary(roster.members, channels),
    )
    return Decision(status, channels, open_)


def _record(seen: Seen, now: datetime) -> _Record:
    status = renewed(seen.name, seen.status, seen.cards, seen.domains, seen.labelled)
    awaited = still_awaited(seen.name, status, seen.cards, seen.nodes)
    if not status.awaited:
        return _Record(status, awaited, status.channels)
    cards = seen.cards.values()
    entries = completed(seen.name, status.channels, seen.domains, cards, recall=status.recall, now=now)
    return _Record(status, awaited, entries)


def _roster(seen: Seen, record: _Record, door: Doorkeeper) -> Roster:
    return plan_members(
        seen.name,
        Roster(record.status.members, record.status.generation),
        slots=seen.slots,
        cards=seen.cards,
        nodes=seen.nodes,
        admitted=lambda card: not record.awaited and door.refusal(card) is None,
    )


def _closed_for_old_lists(seen: Seen, record: _Record, roster: Roster) -> _Record:
    """Who comes in may run with an old list: those in it who left meanwhile are still connected."""
    inside = {m.node for m in record.status.members if m.state is not MemberState.LEAVING}
    coming = (m.node for m in roster.members if m.state is not MemberState.LEAVING and m.node not in inside)
    cards = (seen.cards[node].status for node in coming)
    if any(c.imex_partition == seen.name and c.applied_generation < roster.generation for c in cards):
        return record._replace(status=structs.replace(record.status, open_generation=roster.generation))
    return record


def _channels(
    seen: Seen, record: _Record, roster: Roster, answers: Answers, *, open_: bool, now: datetime
) -> Channels:
    """While the record is not open nothing is given and nothing is free: nobody knows what is held."""
    return plan_channels(
        record.entries,
        _wants(seen, roster.members),
        released=seen.released,
        refused=seen.refused,
        count=seen.channel_count if open_ else 0,
        now=now,
        last=record.status.last_channel,
        recall=record.status.recall,
        free=lambda entry: open_ and is_free(entry, answers),
    )


def _wants(seen: Seen, members: Iterable[Member]) -> set[Want]:
    staying = (member.node for member in members if member.state is not MemberState.LEAVING)
    return {want for node in staying for want in seen.wants.get(node, ())}


def _channels_condition(
    seen: Seen,
    awaited: tuple[str, ...],
    late: list[str],
    recall: int,
    channels: Channels,
    answers: Answers,
    now: datetime,
) -> tuple[Condition, ...]:
    count, reasons = in_the_way(channels.assignments, recall, answers)
    if awaited:
        words = sentence(Reason.CHANNELS_UNKNOWN, nodes=", ".join(awaited))
        return _said(seen.status.conditions, CHANNELS_FREE, Reason.CHANNELS_UNKNOWN, words, now)
    if late:
        words = sentence(Reason.LISTS_OLD, nodes=", ".join(late))
        return _said(seen.status.conditions, CHANNELS_FREE, Reason.LISTS_OLD, words, now)
    if reasons:
        words = sentence(Reason.CHANNELS_HELD, count=count, nodes=", ".join(reasons))
        return _said(seen.status.conditions, CHANNELS_FREE, Reason.CHANNELS_HELD, words, now)
    return _unsaid(seen.status.conditions, CHANNELS_FREE, Reason.CHANNELS_FREE, now)


def _admission_condition(
    seen: Seen, conditions: tuple[Condition, ...], door: Doorkeeper, roster: Roster, now: datetime
) -> tuple[Condition, ...]:
    members = {member.node for member in roster.members if member.state is not MemberState.LEAVING}
    outside = [seen.cards[name] for name in sorted(seen.cards.keys() & seen.nodes - members)]
    waiting = [card for card in outside if card.status.partition == seen.name]
    refusals = [refusal for card in waiting if (refusal := door.refusal(card)) and refusal.reason]
    if refusals:
        words = "; ".join(refusal.words for refusal in refusals)
        return _said(conditions, NODES_ADMITTED, refusals[0].reason or Reason.DRAIN_FIRST, words, now)
    if roster.homeless:
        facts = {"partition": seen.name, "slots": seen.slots}
        words = "; ".join(sentence(Reason.NO_SLOT, node=node, **facts) for node in roster.homeless)
        return _said(conditions, NODES_ADMITTED, Reason.NO_SLOT, words, now)
    return _unsaid(conditions, NODES_ADMITTED, Reason.NODES_ADMITTED, now)


def _said(
    conditions: tuple[Condition, ...], type_: str, reason: Reason, message: str, now: datetime
) -> tuple[Condition, ...]:
    return with_condition(conditions, type_, status=False, reason=reason, message=message, now=now)


def _unsaid(conditions: tuple[Condition, ...], type_: str, reason: Reason, now: datetime) -> tuple[Condition, ...]:
    """All is well: worth a word only where it was not."""
    if find_condition(conditions, type_) is None:
        return conditions
    return with_condition(conditions, type_, status=True, reason=reason, message=sentence(reason), now=now)


def _summary(members: tuple[Member, ...], channels: Channels) -> PartitionSummary:
    staying = [member for member in members if member.state is not MemberState.LEAVING]
    ready = sum(member.state is MemberState.READY for member in staying)
    assigned = sum(entry.state is ChannelState.ASSIGNED for entry in channels.assignments)
    state = (
        PartitionState.DOWN
        if not ready
        else PartitionState.UP
        if ready == len(staying)
        else PartitionState.DEGRADED
    )
    return PartitionSummary(f"{ready}/{len(staying)}", str(assigned), state)
