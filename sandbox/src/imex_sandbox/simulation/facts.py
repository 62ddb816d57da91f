"""What was true of the simulated world, and until when: the knowledge against which refusals are judged."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from imex_sandbox.embedded.kinds import Kind
from imex_sandbox.embedded.statuses import Json
from imex_sandbox.embedded.storage import Change, Key
from imex_sandbox.simulation.cluster import SimulatedCluster
from imex_sandbox.simulation.imex import Ctl
from imex_sandbox.simulation.kinds import CLAIMS, DOMAINS, PARTITIONS
from imex_sandbox.simulation.node import SimulatedNode

KEPT = 1200.0
"""Seconds for which former versions of objects are kept."""


class _Version(NamedTuple):
    until: float
    """When it was replaced."""
    kind: Kind
    key: Key
    document: Json | None
    """None: the object did not exist."""


class Facts:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._versions: deque[_Version] = deque()
        self._last: dict[tuple[str, str], float] = {}
        """When a fact about a node was last true, by its name and that of the node."""
        self._first: dict[tuple[str, str], float] = {}
        """Since when it has been true without a break."""
        cluster.storage.subscribe(self._on_change)

    def observe(self) -> None:
        """Before and after each fault begins, and before it ends."""
        for node in self._cluster.nodes.values():
            self._note("api", node.name, _has_api_trouble(node))
            self._note("cut", node.name, node.is_cut or self._cluster.server.is_down)
            self._note("disk", node.name, node.disk.is_full or node.disk.errors > 0)
            self._note("fabric", node.name, bool(node.hardware.broken))
            self._note("ctl", node.name, self._has_ctl_trouble(node))
            self._note("hang", node.name, any(program.hangs for program in node.programs))
            self._note("uninformed", node.name, _is_uninformed(node))

    def was(self, fact: str, node: str, since: float) -> bool:
        """At any time since then."""
        return self.last(fact, node) >= since

    def last(self, fact: str, node: str) -> float:
        return self._last.get((fact, node), -KEPT)

    def has_been(self, fact: str, node: str, since: float) -> bool:
        """Without a break."""
        first = self._first.get((fact, node))
        return first is not None and first < since

    def documents(self, kind: Kind, key: Key, since: float) -> Iterator[Json | None]:
        """Every version that the object had since then; None if it did not exist at some time."""
        now = self._cluster.storage.get(kind, key)
        yield now.document if now else None
        for version in self._versions:
            if version.until >= since and (version.kind, version.key) == (kind, key):
                yield version.document

    def _on_change(self, change: Change) -> None:
        if change.kind not in (PARTITIONS, DOMAINS, CLAIMS):
            return
        now = self._cluster.loop.time()
        self._versions.append(_Version(now, change.kind, change.key, change.old.document if change.old else None))
        while self._versions and self._versions[0].until < now - KEPT:
            self._versions.popleft()

    def _note(self, fact: str, node: str, is_true: bool) -> None:
        now, key = self._cluster.loop.time(), (fact, node)
        if is_true:
            self._last[key] = now
            self._first.setdefault(key, now)
        else:
            self._first.pop(key, None)

    def _has_ctl_trouble(self, node: SimulatedNode) -> bool:
        daemon = self._cluster.fabric.daemons.get(node.name)
        return node.ctl_delay > 1.0 or (daemon is not None and daemon.ctl is not Ctl.WORKS)


def _has_api_trouble(node: SimulatedNode) -> bool:
    links = [program.link for program in node.running()]
    return any(link.is_cut or link.failures or link.stragglers or link.latency > 1.0 for link in links)


def _is_uninformed(node: SimulatedNode) -> bool:
    """Whether what its program knows may be outdated."""
    lagging = any(program.hangs or program.link.watch_lag for program in node.programs)
    return lagging or _has_api_trouble(node)
