"""Facts that count only after they have lasted: a member that is out of reach, a membership that was lost.

Both are true for a moment whenever a daemon restarts or the controller rewrites a member list, and acting on them
at once would cost writes, or stop a daemon that is needed. `next_facts` is pure; `follow_lasting_facts` keeps the
snapshot up to date.
"""

from typing import NoReturn

from msgspec import Struct

from imex_dra.api.nvlinkpartition import MemberState
from imex_dra.base.clock import Clock
from imex_dra.base.waiting import wait_any
from imex_dra.node.grant import Snapshot
from imex_dra.node.state import NodeState

UNREACHABLE_AFTER = 5.0
EXPELLED_AFTER = 10.0


class LastingFacts(Struct, frozen=True):
    """Since when each fact has been true without interruption."""

    unconnected: dict[str, float] = {}
    """By member."""
    not_a_member: float | None = None

    def unreachable(self, now: float) -> tuple[str, ...]:
        return tuple(sorted(node for node, since in self.unconnected.items() if now >= since + UNREACHABLE_AFTER))

    def expelled(self, now: float) -> bool:
        return self.not_a_member is not None and now >= self.not_a_member + EXPELLED_AFTER

    def next_change(self, now: float) -> float | None:
        """After how many seconds a fact will have lasted long enough; None if there is no such fact."""
        # The same sums as above: otherwise rounding could make a fact count at a moment that is never looked at.
        due = [since + UNREACHABLE_AFTER for since in self.unconnected.values()]
        due += [] if self.not_a_member is None else [self.not_a_member + EXPELLED_AFTER]
        return min((at - now for at in due if at > now), default=None)


def next_facts(facts: LastingFacts, snapshot: Snapshot, now: float) -> LastingFacts:
    since = facts.not_a_member if facts.not_a_member is not None else now
    return LastingFacts(
        unconnected={node: facts.unconnected.get(node, now) for node in missed_members(snapshot)},
        not_a_member=since if _lost_membership(snapshot) else None,
    )


def unconnected_members(snapshot: Snapshot) -> frozenset[str]:
    """Empty while the connections are not known: unknown is not unconnected."""
    connected = snapshot.connected_members
    if connected is None:
        return frozenset()
    return frozenset(member.node for member in snapshot.other_members) - connected


def missed_members(snapshot: Snapshot) -> frozenset[str]:
    """The unconnected members whose daemon should be running.

    A member that is NotReady or Joining has said so itself, and no other member has to: the restart of a daemon
    would otherwise cost two writes of each other node. When it is Ready again, it has the same time to connect. A
    member that does not report any more is Unknown, and is missed.
    """
    expected = (MemberState.READY, MemberState.UNKNOWN, MemberState.SUSPENDED)
    running = {member.node for member in snapshot.other_members if member.state in expected}
    return unconnected_members(snapshot) & running


def _lost_membership(snapshot: Snapshot) -> bool:
    """Whether the partition shows that the node was a member and no longer is.

    A partition that was not delivered shows nothing. Nor does one that was lost and is being recovered: its nodes
    are admitted again only after all of them have reported, and until then their daemons must keep running.
    """
    partition, daemon = snapshot.partition, snapshot.daemon
    if partition is None or snapshot.member is not None or partition.status.pending_reports:
        return False
    # The daemon's own list contains the node, so only a later one can be without it.
    return daemon.partition == partition.metadata.name and partition.status.generation > daemon.generation


async def follow_lasting_facts(state: NodeState, clock: Clock) -> NoReturn:
    facts = LastingFacts()
    while True:
        changed, now = state.changed, clock.monotonic()
        facts = next_facts(facts, state.snapshot, now)
        state.update(unreachable=facts.unreachable(now), expelled=facts.expelled(now))
        # The update itself may have set `changed`: then the facts are evaluated once more, to the same result.
        await wait_any(changed, timeout=facts.next_change(now))
