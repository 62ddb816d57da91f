"""nvidia-imex that the host manages (`imex node --imex host-managed`): it is observed, and nothing else.

Nothing is started, reloaded or written. That the member list of the partition is applied means here: the daemon is
READY, and connected to no node that is not in the list. The host decides about the node list and the index; the
controller compares them (`controller.nodelists`).
"""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from imex_dra.api import nodereasons
from imex_dra.api.nvlinknode import HostNodeList, ImexState
from imex_dra.base.clock import Clock
from imex_dra.base.errors import Misconfigured
from imex_dra.base.waiting import wait_any
from imex_dra.daemon.state import Connections, DaemonState, OwnReport, PollIntervals, Readiness
from imex_dra.hardware.host import resolve_in_root
from imex_dra.imex.ctl import ImexCtl
from imex_dra.imex.memberlist import MemberList

DEFAULT_CONFIG = "/etc/nvidia-imex/config.cfg"
_DEFAULT_NODES = "/etc/nvidia-imex/nodes_config.cfg"
_NODES_KEY = "IMEX_NODE_CONFIG_FILE"

_PROGRAM_PATH = "PATH=/usr/bin:/usr/local/bin:/opt/nvidia/imex/bin:/usr/local/nvidia/imex/bin:/usr/sbin:/bin:/sbin"

_POLL_INTERVALS = PollIntervals(starting=2.0)
"""A daemon that the host does not start may be missing for ever, and each query is a process."""
_CLOCK = Clock()


class HostConfig(NamedTuple):
    root: Path
    """Where the root directory that the host's nvidia-imex sees is mounted."""
    path: str = DEFAULT_CONFIG
    """In this root."""


def host_ctl_command(root: Path) -> list[str]:
    """Runs the host's nvidia-imex-ctl: `env` finds chroot in our image, and chroot the program in the root."""
    unset = ("-u", "LD_LIBRARY_PATH", "-u", "LD_PRELOAD")
    return ["env", *unset, _PROGRAM_PATH, "chroot", str(root), "nvidia-imex-ctl"]


def read_node_list(config: HostConfig) -> tuple[str, ...]:
    """The entries, by index. Misconfigured if there are none."""
    settings = dict(line.partition("=")[::2] for line in _lines(config, config.path))
    path = {key.strip(): value.strip() for key, value in settings.items()}.get(_NODES_KEY) or _DEFAULT_NODES
    entries = tuple(_lines(config, path))
    if not entries:
        raise Misconfigured(nodereasons.host_config_unreadable(path=path, cause="it lists no nodes"))
    return entries


def _lines(config: HostConfig, path: str) -> list[str]:
    try:
        text = resolve_in_root(config.root, path).read_text(errors="replace")
    except OSError as error:
        cause = error.strerror or str(error)
        raise Misconfigured(nodereasons.host_config_unreadable(path=path, cause=cause)) from error
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


class HostView(NamedTuple):
    """What is known about the host's daemon."""

    entries: tuple[str, ...] = ()
    problem: str = ""
    """Why there are no entries."""
    readiness: Readiness = Readiness()
    own: OwnReport = OwnReport()
    connections: Connections | None = None
    """None while nvidia-imex is not READY."""
    linked: frozenset[int] | None = None
    """Nodes with a connection that one end at least reports; None if the last query had no answer."""

    @property
    def node_list(self) -> HostNodeList:
        digest = hashlib.sha256("\n".join(self.entries).encode()).hexdigest()[:16] if self.entries else ""
        return HostNodeList(digest, len(self.entries))


def daemon_state(
    view: HostView, partition: str, member_list: MemberList | None, last: DaemonState, unreported_since: str = ""
) -> DaemonState:
    """`last` is the state before: the generation that was confirmed stays until a later one is."""
    connected = view.connections.indexes if view.connections else None
    not_members: list[str] = []
    generation = last.generation if last.partition == partition else 0
    index = -1 if view.own.own_index is None else view.own.own_index
    if view.linked is not None and member_list is not None and index == member_list.own_index:
        # One end is enough: a node whose daemon does not answer may still use its imports.
        outside = [other for other in sorted(view.linked) if other not in member_list.addresses]
        not_members = [f"{other}: {_entry(view.entries, other)}" for other in outside]
        generation = generation if outside else member_list.generation
    problem = view.problem
    if not_members:
        problem = nodereasons.host_nodes_not_members(entries=not_members)
    elif member_list is not None and index not in (-1, member_list.own_index):
        problem = nodereasons.host_index_moves()
    return DaemonState(
        view.readiness.state,
        partition,
        index,
        generation,
        connected=connected,
        unreported_since=unreported_since,
        version=view.own.version,
        problem=problem,
        host_list=view.node_list,
    )


def _entry(entries: tuple[str, ...], index: int) -> str:
    return entries[index] if index < len(entries) else "not in the list"


class HostDaemon:
    def __init__(
        self,
        config: HostConfig,
        ctl: ImexCtl,
        publish: Callable[[DaemonState], None],
        *,
        poll_intervals: PollIntervals = _POLL_INTERVALS,
        clock: Clock = _CLOCK,
    ) -> None:
        self._config = config
        self._ctl = ctl
        self._publish = publish
        self._poll_intervals = poll_intervals
        self._clock = clock
        self._partition = ""
        self._member_list: MemberList | None = None
        self._view = HostView()
        self._state = DaemonState()
        self._changed = asyncio.Event()

    def expect(self, partition: str, member_list: MemberList | None) -> None:
        """The partition of the node, and the list that its daemon must agree with; None: it is not known."""
        if (partition, member_list) != (self._partition, self._member_list):
            self._partition, self._member_list = partition, member_list
            self._changed.set()

    async def run(self) -> NoReturn:
        while True:
            self._changed.clear()
            # As they are before the queries: an answer does not confirm a list that arrives meanwhile.
            partition, member_list = self._partition, self._member_list
            self._view = await self._look(self._view)
            connections = self._view.connections
            unreported = connections.unreported_since(self._clock.now()) if connections else ""
            self._state = daemon_state(self._view, partition, member_list, self._state, unreported)
            self._publish(self._state)
            connected = connections.indexes if connections else None
            interval = self._poll_intervals.interval(self._member_list, self._view.readiness, connected, age=0)
            await wait_any(self._changed, timeout=interval)

    async def _look(self, before: HostView) -> HostView:
        try:
            entries, problem = await asyncio.to_thread(read_node_list, self._config), ""
        except Misconfigured as error:
            entries, problem = (), str(error)
        path = Path(self._config.path)
        readiness = before.readiness.observe(await self._ctl.state(path))
        if readiness.state is not ImexState.READY:
            return HostView(entries, problem, readiness)
        own = before.own if before.entries == entries else OwnReport()
        if own.own_index is None:
            own = own._replace(own_index=await self._ctl.own_index(path))
        domain = await self._ctl.domain(path)
        own_node = domain.nodes.get(own.own_index) if domain and own.own_index is not None else None
        if own_node is not None:
            own = own._replace(version=own_node.version)
        # The last connections stay known, but an answer from before a member list does not confirm it.
        connected, linked = None, None
        if domain and own.own_index is not None:
            connected = domain.connected_both_ways(own.own_index)
            linked = None if connected is None else domain.connected_either_way(own.own_index)
        now = self._clock.now()
        connections = (before.connections or Connections(now)).observe(connected, now)
        return HostView(entries, problem, readiness, own, connections, linked)
