"""Decisions of the agent, as pure functions: restart or not, how long to wait for recovery, when to poll next.

See docs/design/membership.md for what a change of the member list requires.
"""

from datetime import datetime, timedelta
from enum import Enum, auto
from typing import NamedTuple

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.clock import rfc3339
from imex_dra.imex.link import DaemonState
from imex_dra.imex.memberlist import MemberList

_OUTDATED_AFTER = timedelta(seconds=30)
"""After this time connections that are no longer reported count as outdated: several queries in a row failed."""


class Step(Enum):
    """What a new member list requires.

    A restart of nvidia-imex tears down every import of every workload that uses this node's memory, so it is
    the last resort.
    """

    NOTHING = auto()
    START = auto()
    RESTART = auto()
    """The node map or the node's own index or address changed. nvidia-imex reads these only at start."""
    UPDATE_HOSTS = auto()
    """Addresses of other members changed: rewrite the hosts file and send SIGUSR1."""


def next_step(applied: MemberList | None, desired: MemberList) -> Step:
    if applied is None:
        return Step.START
    if _identity(applied) != _identity(desired):
        return Step.RESTART
    return Step.NOTHING if applied.addresses == desired.addresses else Step.UPDATE_HOSTS


def supersedes(new: MemberList, old: MemberList | None) -> bool:
    """During an update of `imex node`, two instances may send lists for a moment; the older list must not win."""
    return old is None or new.partition != old.partition or new.generation >= old.generation


def _identity(member_list: MemberList) -> tuple[object, ...]:
    return (
        member_list.partition,
        member_list.max_nodes,
        member_list.name_format,
        member_list.own_index,
        member_list.own_address,
    )


class Recovery(NamedTuple):
    """After an unclean exit, nvidia-imex waits until all nodes that had imported from it have reconnected.

    A node that never returns would block this node, and all workloads on it, forever.
    """

    waiting_since: float | None = None
    timed_out: bool = False

    @property
    def quorum(self) -> str:
        """IMEX_WAIT_FOR_QUORUM for an nvidia-imex that is started now."""
        return "NONE" if self.timed_out else "RECOVERY"

    def observe(self, state: ImexState, now: float, timeout: float) -> "Recovery":
        if state is ImexState.READY:
            return Recovery()
        if state is not ImexState.WAITING_FOR_RECOVERY or self.timed_out:
            return self
        since = now if self.waiting_since is None else self.waiting_since
        return Recovery(since, timed_out=now - since >= timeout)


def recovery_problem(state: ImexState, timeout: float, *, without_quorum: bool) -> str:
    """The problem to report for an nvidia-imex that answers; `without_quorum` if it was started with NONE."""
    if state is ImexState.WAITING_FOR_RECOVERY:
        return (
            "nvidia-imex did not exit cleanly and waits up to"
            f" {timeout:g} s for the nodes that had imported memory from it"
        )
    if without_quorum:
        return (
            "nvidia-imex was restarted without recovery: nodes that had imported memory from it did not reconnect"
            f" within {timeout:g} s, and jobs that still run there may access memory that no longer exists"
        )
    return ""


class Readiness(NamedTuple):
    """The state to believe, given what `nvidia-imex-ctl -q` answers about a process that is alive.

    A READY daemon becomes UNAVAILABLE only after two queries without an answer. On a busy node a single query may
    time out, and a state that is not READY fails prepares and makes ComputeDomains NotReady. A process that has
    ended needs no query. A daemon that really hangs is noticed one query later; its devices stay published for
    15 s anyway.
    """

    state: ImexState = ImexState.UNAVAILABLE
    missed: bool = False
    """The last query had no answer, and the state is the one before it."""

    def observe(self, answer: ImexState) -> "Readiness":
        first_miss = answer is ImexState.UNAVAILABLE and self.state is ImexState.READY and not self.missed
        return Readiness(self.state, missed=True) if first_miss else Readiness(answer)


class Connections(NamedTuple):
    """The last connections that `nvidia-imex-ctl -N` reported for a READY daemon, and when.

    It queries every node, so one bad node can make it slow or fail. Then the last known connections stay.
    """

    reported_at: datetime
    """Or, before the first report, when the daemon became READY."""
    indexes: tuple[int, ...] | None = None

    def observe(self, indexes: tuple[int, ...] | None, now: datetime) -> "Connections":
        return self if indexes is None else Connections(now, indexes)

    def unreported_since(self, now: datetime) -> str:
        """When they were last reported, if that is too long ago to pass over it; otherwise empty."""
        return rfc3339(self.reported_at) if now - self.reported_at >= _OUTDATED_AFTER else ""


class PollIntervals(NamedTuple):
    """Seconds between two queries of nvidia-imex-ctl: shorter while a change is expected."""

    starting: float = 0.2
    """Until nvidia-imex is READY."""
    connecting: float = 1.0
    """Until all members are connected, and after a query without an answer."""
    steady: float = 5.0

    def interval(self, applied: MemberList | None, state: DaemonState, *, missed: bool = False) -> float:
        if applied is None:
            return self.steady
        if state.state is not ImexState.READY:
            return self.starting
        others = {int(index) for index in applied.addresses} - {applied.own_index}
        return self.steady if others <= set(state.connected or ()) and not missed else self.connecting
