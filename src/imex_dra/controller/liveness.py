"""Which members are alive, since when, and which are suspended. Pure.

The Node object is the only source of liveness: its Ready condition, or its deletion. The age of a report says
nothing, because a node writes only when something changes.

A member is Suspended if it has been Unknown for a while and every live member lists it as unreachable. The others
then no longer wait for it: it needs neither apply a member list nor acknowledge an epoch for them to go on. What
makes that safe: a node that is Suspended gets no channel (`node.grant`), it returns only through admission with
the current member list and epoch, and until then the channels that its processes may hold are not reused
(`epochs.is_reusable`). See docs/design/membership.md.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import structs

from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import Member, MemberState
from imex_dra.base.clock import rfc3339
from imex_dra.controller.settings import DEFAULTS


class Liveness(NamedTuple):
    now: datetime
    not_ready_nodes: Set[str] = frozenset()
    """Nodes whose Ready condition is not True. A Node without this condition counts as ready."""
    suspend_after: float = DEFAULTS.suspend_after
    epoch: int = 0
    """Of the partition before this plan."""

    def suspended(self, members: Sequence[Member], nvlink_nodes: Mapping[str, NVLinkNode]) -> list[Member]:
        """The members, with those that are due as Suspended."""
        live = [member.node for member in members if member.state is MemberState.READY]
        reports = [nvlink_nodes[node].status for node in live]
        return [
            structs.replace(member, state=MemberState.SUSPENDED, suspended_epoch=self.epoch)
            if self._is_due(member) and live and all(member.node in report.unreachable for report in reports)
            else member
            for member in members
        ]

    def next_suspension(self, members: Iterable[Member]) -> float | None:
        """Seconds until a member may be due. After that, only a report can change the outcome."""
        delays = [self._remaining(member) for member in members if member.state is MemberState.UNKNOWN]
        return min((delay for delay in delays if delay > 0), default=None)

    def with_since(self, members: Iterable[Member], before: Iterable[Member]) -> list[Member]:
        """The members, each with the time at which its state last changed."""
        known = {member.node: member for member in before}
        return [self._dated(member, known.get(member.node)) for member in members]

    def _dated(self, member: Member, before: Member | None) -> Member:
        if before is not None and before.state is member.state and before.since:
            return structs.replace(member, since=before.since)
        return structs.replace(member, since=rfc3339(self.now))

    def _is_due(self, member: Member) -> bool:
        return member.state is MemberState.UNKNOWN and self._remaining(member) <= 0

    def _remaining(self, member: Member) -> float:
        due = datetime.fromisoformat(member.since) + timedelta(seconds=self.suspend_after)
        return (due - self.now).total_seconds()
