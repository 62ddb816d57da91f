"""Parses a ResourceClaim: is it allocated on this node, and which channel does it request? Pure.

The first step of a prepare. See docs/design/prepare.md.
"""

from typing import NamedTuple

from imex_dra.api.claimreasons import claim_not_here, claim_replaced, invalid_config
from imex_dra.api.computedomain import AllocationMode
from imex_dra.api.names import DRIVER, READINESS_ANNOTATION, READINESS_MEMBERS
from imex_dra.api.opaque import ComputeDomainChannelConfig, parse_channel_config
from imex_dra.api.views import AllocationResult, DeviceConfig, ResourceClaim
from imex_dra.base.errors import Rejected
from imex_dra.dra.plugin import ClaimId

_FROM_CLAIM = "FromClaim"
"""Source of a config: the claim itself. The other one is FromClass, its DeviceClass."""


class ChannelRequest(NamedTuple):
    """What a valid claim requests of this node."""

    claim: ClaimId
    domain_uid: str
    domain: str
    """The ComputeDomain in messages: its UID until its name is known."""
    mode: AllocationMode
    results: tuple[AllocationResult, ...]
    waits_for_peers: bool = False
    """Whether it is granted only when the other nodes of the ComputeDomain are reachable."""


def parse_claim(claim_id: ClaimId, claim: ResourceClaim, node: str) -> ChannelRequest:
    """Raises Rejected if this claim can never be prepared on this node."""
    if claim.metadata.uid != claim_id.uid:
        explanation = claim_replaced(claim=str(claim_id), found_uid=claim.metadata.uid, requested_uid=claim_id.uid)
        raise explanation.error(Rejected)
    results = _results(claim_id, claim, node)
    configs = [_config(claim_id, claim, result) for result in results]
    if len({config.domain_id for config in configs}) > 1:
        raise _invalid(claim_id, "its requests name several ComputeDomains")
    all_channels = any(config.allocation_mode is AllocationMode.ALL for config in configs)
    mode = AllocationMode.ALL if all_channels else AllocationMode.SINGLE
    # From the ComputeDomain, through its template: so a prepare need not read the ComputeDomain to know it.
    waits_for_peers = claim.metadata.labels.get(READINESS_ANNOTATION) == READINESS_MEMBERS
    return ChannelRequest(claim_id, configs[0].domain_id, configs[0].domain_id, mode, results, waits_for_peers)


def base_request(result: AllocationResult) -> str:
    """The request without the chosen alternative: with `firstAvailable` it is `<request>/<alternative>`."""
    return result.request.partition("/")[0]


def _results(claim_id: ClaimId, claim: ResourceClaim, node: str) -> tuple[AllocationResult, ...]:
    if claim.status.allocation is None:
        raise _not_here(claim_id, node, "it is not allocated")
    results = claim.results
    if not results:
        raise _not_here(claim_id, node, f"none of its devices is allocated from {DRIVER}")
    for result in results:
        if result.pool != node:
            raise _not_here(claim_id, node, f"it is allocated on node {result.pool}")
    requests = [base_request(result) for result in results]
    if len(set(requests)) != len(requests):
        raise _not_here(claim_id, node, "a request asks for more than one channel, and a claim gets only one")
    return results


def _config(claim_id: ClaimId, claim: ResourceClaim, result: AllocationResult) -> ComputeDomainChannelConfig:
    """The config of the claim, or else the last one of the DeviceClass, as Kubernetes defines their order."""
    assert claim.status.allocation is not None
    matching = [config for config in claim.status.allocation.devices.config if _applies(config, result)]
    of_claim = [config for config in matching if config.source == _FROM_CLAIM]
    if len(of_claim) > 1:
        # The last one would win. A user who adds a second one to a claim has made a mistake, or hopes that a
        # reader of the claim sees only the first.
        raise _invalid(claim_id, f"request {result.request} has {len(of_claim)}, and only one is allowed")
    if not matching:
        raise _invalid(claim_id, f"request {result.request} has none")
    opaque = (of_claim or matching)[-1].opaque
    assert opaque is not None
    try:
        return parse_channel_config(opaque.parameters)
    except ValueError as error:
        raise _invalid(claim_id, str(error)) from error


def _applies(config: DeviceConfig, result: AllocationResult) -> bool:
    ours = config.opaque is not None and config.opaque.driver == DRIVER
    names = {result.request, base_request(result)}
    return ours and (not config.requests or not names.isdisjoint(config.requests))


def _not_here(claim: ClaimId, node: str, cause: str) -> Rejected:
    return claim_not_here(claim=str(claim), node=node, cause=cause).error(Rejected)


def _invalid(claim: ClaimId, cause: str) -> Rejected:
    return invalid_config(claim=str(claim), cause=cause).error(Rejected)
