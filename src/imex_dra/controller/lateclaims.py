"""Claims that are allocated for a ComputeDomain that no longer exists.

The prepare of such a claim fails, and the pod's Event says why. The Event on the claim says it also to those who
look at the claim, or whose pod has no kubelet that answers.
"""

from imex_dra.api import domainreasons
from imex_dra.api.meta import Key
from imex_dra.api.views import RESOURCE_CLAIMS, ResourceClaim
from imex_dra.controller.caches import Caches
from imex_dra.kube.events import EventRecorder

DELAY = 5.0
"""Seconds until a claim counts as late: watches are not ordered, so its ComputeDomain may be seen after it."""


def became_allocated(old: ResourceClaim | None, new: ResourceClaim | None) -> bool:
    return new is not None and bool(new.domain_uids) and not (old is not None and old.domain_uids)


class LateClaimReporter:
    def __init__(self, caches: Caches, events: EventRecorder) -> None:
        self._caches = caches
        self._events = events

    async def reconcile(self, key: Key) -> None:
        claim = self._caches.claims.get(key)
        for uid in sorted(claim.domain_uids) if claim is not None else ():
            assert claim is not None
            if self._caches.compute_domain(uid) is None:
                late = domainreasons.no_such_compute_domain(claim=str(key), uid=uid, namespace=key.namespace)
                self._events.warn(RESOURCE_CLAIMS, claim, late.reason, late.message())
