"""nvidia-imex on every node, as the driver sees it: start, READY, the matrix of connections.

Two daemons are connected if both are READY, the network between their nodes is up, and each has the other's
address under the index with which the other runs. That is all IMEX knows of a domain.
"""

from dataclasses import dataclass, field

from imex_dra.api.nvlinknode import ImexState
from imex_dra.daemon.plan import Step, next_step, supersedes
from imex_dra.imex.link import DaemonState
from imex_dra.imex.memberlist import MemberList

_START = 2.0
_RELOAD = 1.0


@dataclass
class Daemon:
    """It survives the node program, not a reboot."""

    address: str
    applied: MemberList | None = None
    """The member list that it runs with."""
    ready_at: float = 0.0
    reload_at: float = 0.0
    desired: MemberList | None = None

    def accept(self, member_list: MemberList, now: float) -> None:
        """What `imex daemon` does with a list that `imex node` sends."""
        if member_list.own_index < 0:
            if self.desired is not None and self.desired.partition != member_list.partition:
                self.desired = self.applied = None
            return
        if member_list == self.desired or not supersedes(member_list, self.desired):
            return
        self.desired = member_list
        step = next_step(self.applied, member_list)
        if step in (Step.START, Step.RESTART):
            self.applied, self.ready_at = member_list, now + _START
        elif step is Step.UPDATE_HOSTS:
            self.reload_at = now + _RELOAD
        else:
            self.applied = member_list

    def advance(self, now: float) -> None:
        """Applies a list whose reload time has come."""
        if self.applied is not None and self.desired is not None and 0 < self.reload_at <= now:
            self.applied, self.reload_at = self.desired, 0.0

    def restart(self, now: float) -> None:
        if self.applied is not None:
            self.applied, self.ready_at, self.reload_at = self.desired, now + _START, 0.0

    def is_ready(self, now: float) -> bool:
        return self.applied is not None and now >= self.ready_at


@dataclass
class Fabric:
    """All daemons of the cluster, and which nodes cannot reach each other."""

    daemons: dict[str, Daemon] = field(default_factory=dict)
    cuts: set[frozenset[str]] = field(default_factory=set)

    def connected(self, one: str, other: str, now: float) -> bool:
        a, b = self.daemons.get(one), self.daemons.get(other)
        if a is None or b is None or frozenset((one, other)) in self.cuts:
            return False
        return a.is_ready(now) and b.is_ready(now) and _expects(a, b) and _expects(b, a)

    def state(self, node: str, now: float) -> DaemonState:
        """What the ctl of this node says."""
        daemon = self.daemons.get(node)
        if daemon is None or daemon.applied is None:
            return DaemonState()
        daemon.advance(now)
        applied = daemon.applied
        if not daemon.is_ready(now):
            return DaemonState(ImexState.INITIALIZING, applied.partition, applied.own_index, applied.generation)
        others = {name: other.applied for name, other in self.daemons.items() if name != node and other.applied}
        indexes = sorted(o.own_index for name, o in others.items() if self.connected(node, name, now))
        return DaemonState(
            ImexState.READY, applied.partition, applied.own_index, applied.generation, tuple(indexes)
        )


def _expects(daemon: Daemon, other: Daemon) -> bool:
    if daemon.applied is None or other.applied is None:
        return False
    same_names = daemon.applied.name_format == other.applied.name_format
    return same_names and daemon.applied.addresses.get(str(other.applied.own_index)) == other.address
