"""What is known about nvidia-imex, from the answers of its ctl: pure, and the same for an adopted process."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import Struct

from imex_dra.api import nodereasons
from imex_dra.api.nvlinknode import HostNodeList, ImexState
from imex_dra.base.clock import rfc3339
from imex_dra.imex.config import GRACE_TIME
from imex_dra.imex.memberlist import Leave, MemberList

_OUTDATED_AFTER = timedelta(seconds=30)
"""After this time connections that are no longer reported count as outdated: several queries in a row failed."""


class DaemonState(Struct, frozen=True):
    """The state of nvidia-imex and the member list that it runs with."""

    state: ImexState = ImexState.UNAVAILABLE
    partition: str = ""
    index: int = -1
    generation: int = 0
    connected: tuple[int, ...] | None = None
    """Indexes of the members that are connected in both directions, as nvidia-imex-ctl last reported them. None:
    not known, which is not the same as not connected.
    """
    unreported_since: str = ""
    """When nvidia-imex-ctl last reported connections, if that is long ago; RFC 3339."""
    version: str = ""
    """Of nvidia-imex, as it reports itself; empty while it is not known."""
    problem: str = ""
    """One sentence; empty if there is none."""
    address: str = ""
    """Of the daemon pod, if it is in the network of pods."""
    is_supervised: bool = True
    """False while no supervisor runs, so that nothing can use the GPU driver."""
    host_list: HostNodeList | None = None
    """If the host manages nvidia-imex: its node list."""
    started_at: str = ""
    """When the nvidia-imex that runs, or that ended last, was started; RFC 3339. It identifies the process."""


UNKNOWN_DAEMON = DaemonState(problem=nodereasons.imex_not_queried())
"""Before the first look: nvidia-imex may be running. A supervisor that has nothing to run is another state."""


_START_SECONDS = 10.0


class RecoveryTimeouts(NamedTuple):
    """Seconds until nvidia-imex is restarted without recovery."""

    without_importers: float = 60.0
    """While no possible importer is missing. Nodes that are alive reconnect within seconds."""
    longest: float = GRACE_TIME + 300.0
    """Even if one is missing. A member that is dead is Suspended by then. One that is alive, but cut off, has
    ended its imports: its own nvidia-imex cleans up after GRACE_TIME. The rest is for clocks and slow nodes."""


class Recovery(NamedTuple):
    """After an unclean exit, nvidia-imex waits until all nodes that had imported from it have reconnected.

    A node that never returns would block this node, and all workloads on it, forever. nvidia-imex does not tell
    for which nodes it waits. If it still waits although every member that may have imported has reconnected, it
    waits for one that has left or is Suspended. A member that is alive, but cut off, may still use the memory, so
    it is waited for much longer.
    """

    waiting_since: float | None = None
    complete_since: float | None = None
    """Since when no possible importer is missing."""
    timed_out: bool = False

    @property
    def quorum(self) -> str:
        """IMEX_WAIT_FOR_QUORUM for an nvidia-imex that is started now."""
        return "NONE" if self.timed_out else "RECOVERY"

    def observe(self, state: ImexState, now: float, timeouts: RecoveryTimeouts, *, complete: bool) -> "Recovery":
        """`complete`: no possible importer is missing."""
        if state is ImexState.READY:
            return Recovery()
        if state is not ImexState.WAITING_FOR_RECOVERY or self.timed_out:
            return self
        since = now if self.waiting_since is None else self.waiting_since
        complete_since = now if self.complete_since is None else self.complete_since
        is_waiting_for_none = complete and now - complete_since >= timeouts.without_importers
        timed_out = is_waiting_for_none or now - since >= timeouts.longest
        return Recovery(since, complete_since if complete else None, timed_out)


class Boots(NamedTuple):
    """Boot IDs of the members, by index, as they were when the nvidia-imex before the one that waits was READY, or
    as this program found them first.

    A member with another one since has rebooted: no process there uses memory of this node.
    """

    known: Mapping[int, str] = {}

    def observe(self, state: ImexState, current: Mapping[int, str]) -> "Boots":
        return Boots(dict(current) if state is ImexState.READY else {**current, **self.known})

    def rebooted(self, current: Mapping[int, str]) -> frozenset[int]:
        return frozenset(i for i, boot in current.items() if self.known.get(i, boot) != boot)


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


class OwnReport(NamedTuple):
    """What a READY nvidia-imex says about itself. It is asked, not assumed: it finds its index by comparing the
    addresses of the host with its nodes file, and a wrong one breaks every import.
    """

    own_index: int | None = None
    """None while it is not known."""
    version: str = ""
    is_asked: bool = False
    """The index is asked for once: it stays while the process runs."""


def is_same_version(imex: str, driver: str) -> bool:
    """Whether nvidia-imex belongs to this driver. It may report fewer parts of the version. What is not a version,
    such as NO_GPU, says nothing.
    """
    pairs = zip(imex.split("."), driver.split("."), strict=False)
    return not (imex[:1].isdigit() and driver[:1].isdigit()) or all(one == other for one, other in pairs)


class PollIntervals(NamedTuple):
    """Seconds between two queries of nvidia-imex-ctl: shorter while a change is expected."""

    starting: float = 0.2
    """Until nvidia-imex is READY."""
    waiting: float = 2.0
    """Until it is READY, if a start takes longer: each query is several processes and mounts."""
    connecting: float = 1.0
    """Until all members are connected, and after a query without an answer."""
    steady: float = 5.0

    def interval(
        self,
        desired: MemberList | Leave | None,
        readiness: Readiness,
        connected: tuple[int, ...] | None,
        age: float,
    ) -> float:
        """`age`: seconds since the process was found."""
        if readiness.state is not ImexState.READY:
            return self.starting if age < _START_SECONDS else max(self.starting, self.waiting)
        others = desired.addresses.keys() - {desired.own_index} if isinstance(desired, MemberList) else set()
        is_complete = connected is not None and others <= set(connected)
        return self.steady if is_complete and not readiness.missed else self.connecting
