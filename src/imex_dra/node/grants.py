"""May this claim have a channel here, and which one? Pure: the most guarded question on a node."""

from typing import NamedTuple

from imex_dra.api.computedomain import ACCEPTED, AllocationMode, ComputeDomain
from imex_dra.api.meta import is_deleting, key_of
from imex_dra.api.names import ALL_CHANNELS_ALLOWED, ALL_CHANNELS_LABEL, LEASE, NAMESPACE
from imex_dra.api.nvlinknode import FabricState
from imex_dra.api.nvlinkpartition import NVLinkPartition
from imex_dra.api.reasons import Reason, sentence
from imex_dra.base.errors import Rejected
from imex_dra.kube.conditions import find_condition
from imex_dra.node.claims import Wish
from imex_dra.node.readiness import Knowledge, Obstacle, obstacle

NO_CHANNEL = -1


class Grant(NamedTuple):
    domain_name: str
    partition: str
    channel: int
    all: bool
    recall: int = 0
    """Of the record that grants it."""


def decide(known: Knowledge, wish: Wish, promised: int = 0) -> Grant | Obstacle:
    """For a node with fabric; the assignment is the controller's, and nothing that the claim says replaces it.

    `promised`: the recall that this node has answered; a record from before it grants nothing.
    """
    hindrance = obstacle(known)
    if hindrance is not None and hindrance.hopeless:
        return hindrance
    if known.home is not None and known.home.status.recall < promised:
        return _outdated(known, known.home, promised)
    assignment = known.assignment(wish.domain_uid)
    if assignment is None:
        return hindrance or _unassigned(known, wish)
    domain = assignment.compute_domain
    if domain.namespace != wish.claim.namespace:
        return Obstacle(Reason.OTHER_NAMESPACE, True, _other_namespace(wish))
    if wish.mode is AllocationMode.ALL and not assignment.all:
        return Obstacle(Reason.ALL_CHANNELS_REFUSED, True, _all_refused(f"{domain.namespace}/{domain.name}"))
    if hindrance is not None:
        return hindrance
    all_channels = wish.mode is AllocationMode.ALL
    recall = known.home.status.recall if known.home else 0
    return Grant(domain.name, known.place, assignment.channel, all_channels, recall)


def without_fabric(known: Knowledge, domain: ComputeDomain) -> Grant:
    """Proven to have no fabric: the pod runs, without a channel, as it would with the peer."""
    assert known.reading.fabric.state is FabricState.NONE
    return Grant(domain.metadata.name, "", NO_CHANNEL, all=False)


def expect_domain(wish: Wish, domains: list[ComputeDomain]) -> ComputeDomain:
    """The claim's ComputeDomain among all; Rejected if no wait can bring this claim a channel."""
    domain = next((domain for domain in domains if domain.metadata.uid == wish.domain_uid), None)
    if domain is None:
        facts: dict[str, object] = {"claim": wish.claim, "uid": wish.domain_uid, "namespace": wish.claim.namespace}
        raise Rejected(sentence(Reason.NO_SUCH_COMPUTE_DOMAIN, **facts))
    if domain.metadata.namespace != wish.claim.namespace:
        raise Rejected(sentence(Reason.OTHER_NAMESPACE, **_other_namespace(wish)))
    if is_deleting(domain):
        raise Rejected(sentence(Reason.COMPUTE_DOMAIN_DELETING, domain=key_of(domain)))
    accepted = find_condition(domain.status.conditions, ACCEPTED)
    if accepted is not None and accepted.status == "False":
        raise Rejected(accepted.message)
    return domain


def _outdated(known: Knowledge, home: NVLinkPartition, promised: int) -> Obstacle:
    facts: dict[str, object] = {
        "partition": home.metadata.name,
        "node": known.node,
        "seen": home.status.recall,
        "known": promised,
    }
    return Obstacle(Reason.RECORD_OLD, False, facts)


def _unassigned(known: Knowledge, wish: Wish) -> Obstacle:
    facts: dict[str, object] = {
        "domain": wish.domain,
        "partition": known.reading.partition,
        "controller_namespace": NAMESPACE,
        "lease": LEASE,
    }
    return Obstacle(Reason.NO_CHANNEL_ASSIGNED, False, facts)


def _other_namespace(wish: Wish) -> dict[str, object]:
    return {"claim": wish.claim, "domain": wish.domain_uid, "namespace": wish.claim.namespace}


def _all_refused(domain: str) -> dict[str, object]:
    return {"domain": domain, "label": f"{ALL_CHANNELS_LABEL}={ALL_CHANNELS_ALLOWED}"}
