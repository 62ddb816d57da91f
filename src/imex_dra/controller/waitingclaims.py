"""Claims of a ComputeDomain that wait for the scheduler, and what the controller knows about the cause. Pure.

The scheduler decides, and says why on the pod. The controller reads neither pods nor ResourceSlices, but it knows
which nodes can publish no devices, and which ones hold as many claims as they can.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from imex_dra.api import reasons
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.reasons import Explanation, Reason
from imex_dra.api.views import ResourceClaim
from imex_dra.controller.domainnodes import consumers, publication_obstacle


class CandidateNode(NamedTuple):
    """A node on which the claims could be allocated."""

    report: NVLinkNode
    claims: int
    """How many devices of the node are allocated."""

    def obstacle(self) -> Explanation | None:
        name, limit = self.report.metadata.name, self.report.status.max_claims
        if 0 < limit <= self.claims:
            return reasons.node_full(node=name, claims=self.claims, limit=limit)
        return publication_obstacle(self.report)


def waiting_claims(
    claims: Sequence[ResourceClaim], candidates: Iterable[CandidateNode], *, has_pods: bool
) -> Explanation | None:
    """`candidates`: the nodes of the partitions in which the ComputeDomain has pods, or all nodes if it has none.

    Nodes with pods of this ComputeDomain are where its other pods probably belong, so each obstacle there is worth
    a word. Of all nodes of a cluster only the fact is, that none of them can take a claim.
    """
    if not claims:
        return None
    pods, obstacles, usable = consumers(claims), [], 0
    for candidate in candidates:
        obstacle = candidate.obstacle()
        if obstacle is not None:
            obstacles.append(obstacle)
        elif has_pods:
            usable += 1
        else:
            return reasons.claims_waiting(pods=pods, causes=[])
    causes = [obstacle.cause for obstacle in obstacles]
    if not usable and all(obstacle.reason is not Reason.NODE_FULL for obstacle in obstacles):
        causes = [reasons.no_devices(causes=causes).cause]
    return reasons.claims_waiting(pods=pods, causes=causes)
