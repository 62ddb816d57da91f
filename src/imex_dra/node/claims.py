"""Reading a claim: is it ours, is it for this node, and what does it ask for? Pure, and strict."""

from typing import NamedTuple

from imex_dra.api.computedomain import AllocationMode
from imex_dra.api.names import DRIVER
from imex_dra.api.opaque import ComputeDomainChannelConfig, parse_channel_config
from imex_dra.api.reasons import Reason, sentence
from imex_dra.api.views import AllocationResult, DeviceConfig, ResourceClaim
from imex_dra.base.errors import Rejected
from imex_dra.dra.plugin import ClaimId


class Wish(NamedTuple):
    """What a checked claim asks of this node."""

    claim: ClaimId
    domain_uid: str
    domain: str
    """How to call the ComputeDomain in a sentence: its UID, until its name is known."""
    mode: AllocationMode
    results: tuple[AllocationResult, ...]


def read_wish(claim_id: ClaimId, claim: ResourceClaim, node: str) -> Wish:
    """Rejected, with the reason, if this claim can never be prepared here as it is."""
    if claim.metadata.uid != claim_id.uid:
        raise Rejected(
            sentence(Reason.CLAIM_CHANGED, claim=claim_id, found=claim.metadata.uid, wanted=claim_id.uid)
        )
    results = _results(claim_id, claim, node)
    configs = [_config(claim_id, claim, result) for result in results]
    if len({config.domain_id for config in configs}) > 1:
        raise _invalid(claim_id, "its requests name several ComputeDomains")
    all_wanted = any(config.allocation_mode is AllocationMode.ALL for config in configs)
    mode = AllocationMode.ALL if all_wanted else AllocationMode.SINGLE
    return Wish(claim_id, configs[0].domain_id, configs[0].domain_id, mode, results)


def base_request(result: AllocationResult) -> str:
    """Without the alternative that was chosen: a result of `firstAvailable` names `<request>/<alternative>`."""
    return result.request.partition("/")[0]


def _results(claim_id: ClaimId, claim: ResourceClaim, node: str) -> tuple[AllocationResult, ...]:
    if claim.status.allocation is None:
        raise _not_here(claim_id, node, "it is not allocated")
    results = claim.results
    if not results:
        raise _not_here(claim_id, node, f"nothing in it is allocated from {DRIVER}")
    for result in results:
        if result.pool != node:
            raise _not_here(claim_id, node, f"it is allocated on node {result.pool}")
    requests = [base_request(result) for result in results]
    if len(set(requests)) != len(requests):
        raise _not_here(claim_id, node, "a request asks for more than one channel, and there is only one")
    return results


def _config(claim_id: ClaimId, claim: ResourceClaim, result: AllocationResult) -> ComputeDomainChannelConfig:
    """The last one wins: the class's come first, then the claim's."""
    assert claim.status.allocation is not None
    matching = [config for config in claim.status.allocation.devices.config if _applies(config, result)]
    if not matching:
        raise _invalid(claim_id, f"there is none for request {result.request}")
    opaque = matching[-1].opaque
    assert opaque is not None
    try:
        return parse_channel_config(opaque.parameters)
    except ValueError as error:
        raise _invalid(claim_id, str(error)) from error


def _applies(config: DeviceConfig, result: AllocationResult) -> bool:
    mine = config.opaque is not None and config.opaque.driver == DRIVER
    names = {result.request, base_request(result)}
    return mine and (not config.requests or not names.isdisjoint(config.requests))


def _not_here(claim: ClaimId, node: str, cause: str) -> Rejected:
    return Rejected(sentence(Reason.CLAIM_NOT_HERE, claim=claim, node=node, cause=cause))


def _invalid(claim: ClaimId, cause: str) -> Rejected:
    return Rejected(sentence(Reason.INVALID_CONFIG, claim=claim, driver=DRIVER, cause=cause))
