"""Why a claim cannot be prepared, or waits: one function per reason. See `reasons`."""

from imex_dra.api.names import (
    DRIVER,
)
from imex_dra.api.reasons import Explanation, Reason


def no_such_claim(*, claim: str) -> Explanation:
    return Explanation(
        Reason.NO_SUCH_CLAIM, f"claim {claim} no longer exists", "if its pod still exists, delete the pod"
    )


def claim_replaced(*, claim: str, found_uid: str, requested_uid: str) -> Explanation:
    cause = f"claim {claim} has UID {found_uid}, but the kubelet requested {requested_uid}"
    return Explanation(Reason.CLAIM_REPLACED, cause, "delete the pod")


def claim_not_here(*, claim: str, node: str, cause: str) -> Explanation:
    return Explanation(
        Reason.CLAIM_NOT_HERE, f"claim {claim} cannot be prepared on node {node}: {cause}", "delete the pod"
    )


def claim_unprepared(*, claim: str) -> Explanation:
    cause = f"claim {claim} was unprepared while it was being prepared"
    return Explanation(Reason.CLAIM_UNPREPARED, cause, "the kubelet prepares it again if it is still needed")


def claim_undecodable(*, cause: str) -> Explanation:
    """The cause names the claim."""
    return Explanation(
        Reason.CLAIM_UNDECODABLE, cause, "claim from the ResourceClaimTemplate that the ComputeDomain names"
    )


def invalid_config(*, claim: str, cause: str) -> Explanation:
    return Explanation(
        Reason.INVALID_CONFIG,
        f"claim {claim} has an invalid configuration for {DRIVER}: {cause}",
        "claim from the ResourceClaimTemplate that the ComputeDomain names",
    )


def api_unreachable(*, node: str, claim: str, cause: str) -> Explanation:
    return Explanation(
        Reason.API_UNREACHABLE, f"node {node} cannot reach the API server to prepare claim {claim}: {cause}"
    )
