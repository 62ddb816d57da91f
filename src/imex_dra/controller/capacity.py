"""Which nodes of the cluster can take another claim.

A ComputeDomain whose first pods wait for the scheduler may get them on any node. To look at ten thousand nodes for
each such ComputeDomain would take minutes in a cluster that is full, so the answer is kept, and only nodes that
have changed since are looked at again.
"""

from imex_dra.api.meta import Key
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.views import ResourceClaim
from imex_dra.controller.caches import Caches
from imex_dra.controller.waitingclaims import CandidateNode, Obstacles, obstacles_on


class Capacity:
    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._changed = {report.metadata.name for report in caches.nvlink_nodes.values()}
        self._usable: set[str] = set()
        self._unusable: dict[str, CandidateNode] = {}
        self._obstacles: Obstacles | None = None
        """On all nodes, if none is usable; None if it is not known yet."""
        caches.nvlink_nodes.subscribe(self._nvlink_node_changed)
        caches.claims.subscribe(self._claim_changed)

    def obstacles(self) -> Obstacles:
        """On all nodes of the cluster. The causes are there only if no node is usable."""
        self._update()
        if self._usable:
            return Obstacles(any_usable=True)
        if self._obstacles is None:
            self._obstacles = obstacles_on(self._unusable[name] for name in sorted(self._unusable))
        return self._obstacles

    def _update(self) -> None:
        if self._changed:
            self._obstacles = None
        while self._changed:
            name = self._changed.pop()
            report = self._caches.nvlink_nodes.get(Key("", name))
            self._usable.discard(name)
            self._unusable.pop(name, None)
            if report is None:
                continue
            candidate = CandidateNode(report, self._caches.devices_in_use(name))
            if candidate.obstacle() is None:
                self._usable.add(name)
            else:
                self._unusable[name] = candidate

    def _nvlink_node_changed(self, old: NVLinkNode | None, new: NVLinkNode | None) -> None:
        self._changed.update(report.metadata.name for report in (old, new) if report is not None)

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        for claim in filter(None, (old, new)):
            self._changed |= claim.nodes
