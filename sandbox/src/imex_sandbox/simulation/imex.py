"""nvidia-imex on every node, as the driver sees it: start, READY, the matrix of connections.

Two daemons are connected if both are READY, the network between their nodes is up, and each has the other's
address under the index with which the other runs. That is all IMEX knows of a domain.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from enum import Enum, auto

from imex_dra.api.nvlinknode import ImexState
from imex_dra.daemon.plan import has_same_identity, supersedes
from imex_dra.daemon.state import DaemonState
from imex_dra.imex.config import identity_of
from imex_dra.imex.memberlist import Leave, MemberList

_START = 2.0
_RELOAD = 1.0


class Ctl(Enum):
    """How nvidia-imex-ctl behaves on a node."""

    WORKS = auto()
    FAILS = auto()
    """It does not answer at all."""
    NO_CONNECTIONS = auto()
    """It tells the state, but not the connections."""


@dataclass
class Daemon:
    """nvidia-imex, its supervisor and their files. It survives the node program, and not a reboot."""

    address: str
    applied: MemberList | None = None
    """The member list that it runs with."""
    ready_at: float = 0.0
    reload_at: float = 0.0
    desired: MemberList | None = None
    ctl: Ctl = Ctl.WORKS
    unready_until: float = 0.0
    """When it was last not READY, or its ctl did not say so."""

    def accept(self, desired: MemberList | Leave, now: float) -> bool:
        """What the manager of `imex node` does to it; whether it changes anything."""
        before = self.desired
        if isinstance(desired, Leave):
            leaves = before is not None and before.partition != desired.partition
            if leaves:
                self.desired = self.applied = None
                self.reload_at = 0.0
            return leaves
        if before is not None and (
            desired == before or not supersedes(desired, before.partition, before.generation)
        ):
            return False
        self.desired = desired
        if self.applied and has_same_identity(identity_of(self.applied, ""), identity_of(desired, "")):
            self.reload_at = self.reload_at or now + _RELOAD
        else:
            self.applied, self.ready_at, self.reload_at = desired, now + _START, 0.0
        return True

    def advance(self, now: float) -> None:
        """Applies a list whose reload time has come."""
        if self.applied is not None and self.desired is not None and 0 < self.reload_at <= now:
            self.applied, self.reload_at = self.desired, 0.0

    def lists(self, partition: str, other: "Daemon") -> bool:
        """Whether it runs in this partition with a list that contains the other one, at whatever index."""
        applied = self.applied
        return (
            applied is not None and applied.partition == partition and other.address in applied.addresses.values()
        )

    def restart(self, now: float, after: float = _START) -> None:
        if self.applied is not None:
            self.applied, self.ready_at, self.reload_at = self.desired, now + after, 0.0

    def is_ready(self, now: float) -> bool:
        return self.applied is not None and now >= self.ready_at


@dataclass
class Fabric:
    """All daemons of the cluster, and which nodes cannot reach each other."""

    daemons: dict[str, Daemon] = field(default_factory=dict)
    cuts: set[frozenset[str]] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the next change; take it before reading anything."""
    changed_at: float = 0.0
    on_change: Callable[[], None] = lambda: None
    _outside: Context = field(default_factory=Context)
    """Daemons go on while the program that sent them a list hangs."""

    def notify(self) -> None:
        """After every change. A daemon that starts or reloads changes by itself a little later."""
        loop = asyncio.get_running_loop()
        now = self.changed_at = loop.time()
        for daemon in self.daemons.values():
            daemon.advance(now)
            if not daemon.is_ready(now) or daemon.ctl is Ctl.FAILS:
                daemon.unready_until = now
            for due in (daemon.ready_at, daemon.reload_at):
                if due > now and daemon.applied is not None:
                    loop.call_at(due + 0.001, self._advance, daemon, due, context=self._outside)
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
        self.on_change()

    def _advance(self, daemon: Daemon, due: float) -> None:
        if daemon.ready_at == due:
            daemon.ready_at = 0.0
            daemon.unready_until = due
            self.notify()
        elif daemon.reload_at == due:
            self.notify()

    def connected(self, one: str, other: str, now: float) -> bool:
        return self.contacts(one, other, now) and self.contacts(other, one, now)

    def contacts(self, one: str, other: str, now: float) -> bool:
        """Whether the first tries to connect to the second, and reaches it."""
        a, b = self.daemons.get(one), self.daemons.get(other)
        if a is None or b is None or frozenset((one, other)) in self.cuts:
            return False
        return a.is_ready(now) and b.is_ready(now) and _expects(a, b)

    def state(self, node: str, now: float) -> DaemonState:
        """What the ctl of this node says."""
        daemon = self.daemons.get(node)
        if daemon is None or daemon.applied is None:
            return DaemonState()
        applied = daemon.applied
        identity = (applied.partition, applied.own_index, applied.generation)
        if daemon.ctl is Ctl.FAILS:
            return DaemonState(ImexState.UNAVAILABLE, *identity)
        if not daemon.is_ready(now):
            return DaemonState(ImexState.INITIALIZING, *identity)
        if daemon.ctl is Ctl.NO_CONNECTIONS:
            return DaemonState(ImexState.READY, *identity, None, unreported_since="2026-01-01T00:00:00Z")
        others = {name: other.applied for name, other in self.daemons.items() if name != node and other.applied}
        indexes = sorted(o.own_index for name, o in others.items() if self.connected(node, name, now))
        return DaemonState(ImexState.READY, *identity, tuple(indexes))


def _expects(daemon: Daemon, other: Daemon) -> bool:
    if daemon.applied is None or other.applied is None:
        return False
    same_names = daemon.applied.name_format == other.applied.name_format
    return same_names and daemon.applied.addresses.get(other.applied.own_index) == other.address
