"""Claims of a ComputeDomain that wait for the scheduler, and what the controller knows about the cause. Pure.

The scheduler decides, and says why on the pod. The controller reads neither pods nor ResourceSlices, but it knows
which nodes can publish no devices, and which ones hold as many claims as they can.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from imex_dra.api import domainreasons
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
            return domainreasons.node_full(node=name, claims=self.claims, limit=limit)
        return publication_obstacle(self.report)


class Obstacles(NamedTuple):
    """Why nodes cannot take another claim."""

    causes: Sequence[str] = ()
    any_full: bool = False
    any_usable: bool = False
    """Whether one of the nodes can."""


def obstacles_on(candidates: Iterable[CandidateNode]) -> Obstacles:
    found = [candidate.obstacle() for candidate in candidates]
    obstacles = [obstacle for obstacle in found if obstacle is not None]
    return Obstacles(
        [obstacle.cause for obstacle in obstacles],
        any(obstacle.reason is Reason.NODE_FULL for obstacle in obstacles),
        len(obstacles) < len(found),
    )


def waiting_claims(claims: Sequence[ResourceClaim], obstacles: Obstacles, *, has_pods: bool) -> Explanation | None:
    """`obstacles`: on the nodes of the partitions in which the ComputeDomain has pods, or on all nodes if it has
    none.

    Nodes with pods of this ComputeDomain are where its other pods probably belong, so each obstacle there is worth
    a word. Of all nodes of a cluster only the fact is, that none of them can take a claim.
    """
    if not claims:
        return None
    pods, causes = consumers(claims), obstacles.causes
    if obstacles.any_usable and not has_pods:
        causes = ()
    elif not obstacles.any_usable and not obstacles.any_full:
        causes = [domainreasons.no_devices(causes=causes).cause]
    return domainreasons.claims_waiting(pods=pods, causes=causes)
