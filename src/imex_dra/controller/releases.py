"""Which ComputeDomains no longer need their channel, confirmed by live reads.

An object that is missing in a cache may exist: a watch can lag, and a list can come from a server that was
restored. Releasing the channel of a running workload cannot be undone, so the API server must confirm it.
"""

import structlog

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import Key, is_deleting
from imex_dra.api.nvlinkpartition import ChannelState, DomainReference, NVLinkPartition
from imex_dra.api.views import RESOURCE_CLAIMS
from imex_dra.base.errors import NotFound, Undecodable
from imex_dra.controller.caches import Caches, release_requested
from imex_dra.kube.client import Client, Selection

log = structlog.get_logger()

_MAX_READS = 32
"""ComputeDomains that are read for one plan. A namespace with many deletions must not hold up the others."""

RECHECK = 10.0
"""Seconds after which a ComputeDomain is checked again of which it is not known whether it needs its channel: an
object that cannot be decoded is in no cache, so its end triggers nothing."""


class ReleaseCheck:
    """For one plan of one partition."""

    def __init__(self, client: Client, caches: Caches, unconfirmed: dict[str, None] | None = None) -> None:
        """`unconfirmed` is kept from one plan of the partition to the next: UIDs that were read and not released,
        the one that was read last at the end.
        """
        self._client = client
        self._caches = caches
        self._unconfirmed = {} if unconfirmed is None else unconfirmed
        self._claimed: dict[str, set[str]] = {}
        """By namespace: UIDs of the ComputeDomains that claims name, as the API server says."""
        self.recheck_after: float | None = None

    async def released_domains(self, partition: NVLinkPartition) -> set[str]:
        """UIDs. `recheck_after` is set if some could not be checked."""
        channels = partition.status.channels
        assigned = [entry.compute_domain for entry in channels if entry.state is ChannelState.ASSIGNED]
        candidates = [domain for domain in assigned if self._may_be_released(domain)]
        for uid in self._unconfirmed.keys() - {domain.uid for domain in candidates}:
            del self._unconfirmed[uid]
        # Those that were not released before are read last, or many that cannot be decoded would keep all others
        # from ever being read.
        order = {uid: number for number, uid in enumerate(self._unconfirmed)}
        candidates.sort(key=lambda domain: order.get(domain.uid, -1))
        if len(candidates) > _MAX_READS:
            self.recheck_after = 0.0
        released = set()
        for domain in candidates[:_MAX_READS]:
            self._unconfirmed.pop(domain.uid, None)
            if await self._is_released(domain):
                released.add(domain.uid)
            else:
                self._unconfirmed[domain.uid] = None
        return released

    def _may_be_released(self, reference: DomainReference) -> bool:
        """By the caches."""
        domain = self._caches.compute_domain(reference.uid)
        if domain is None:
            return True
        in_use = bool(self._caches.allocated_claims(domain)) and not release_requested(domain)
        return is_deleting(domain) and not in_use

    async def _is_released(self, reference: DomainReference) -> bool:
        try:
            found = await self._client.get(COMPUTE_DOMAINS, Key(reference.namespace, reference.name))
            if found.metadata.uid != reference.uid or (is_deleting(found) and release_requested(found)):
                return True
            return is_deleting(found) and reference.uid not in await self._claimed_in(reference.namespace)
        except NotFound:
            return True
        except Undecodable as error:
            # It exists, and may be a claim of this ComputeDomain.
            log.warning("channel not released", domain=f"{reference.namespace}/{reference.name}", error=str(error))
            self.recheck_after = RECHECK
            return False

    async def _claimed_in(self, namespace: str) -> set[str]:
        if namespace not in self._claimed:
            claims = await self._client.list(RESOURCE_CLAIMS, Selection(namespace))
            self._claimed[namespace] = {uid for claim in claims for uid in claim.domain_uids}
        return self._claimed[namespace]
