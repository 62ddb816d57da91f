"""The cluster as the controller sees it: one store per kind, with the indexes its decisions need."""

from typing import Any

from imex_dra.api.computedomain import COMPUTE_DOMAINS, AllocationMode, ComputeDomain
from imex_dra.api.meta import Key
from imex_dra.api.names import ALL_CHANNELS_ALLOWED, ALL_CHANNELS_LABEL, CLIQUE_LABEL, DRIVER
from imex_dra.api.nvlinknode import NVLINK_NODES, NVLinkNode
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.api.views import (
    NAMESPACES,
    NODES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Namespace,
    Node,
    ResourceClaim,
    ResourceClaimTemplate,
)
from imex_dra.kube.client import Client
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store


def domain_uids(claim: ResourceClaim) -> set[str]:
    """The ComputeDomains that an allocated claim names; by its configuration, labelled or not."""
    allocation = claim.status.allocation
    if allocation is None or not claim.results:
        return set()
    opaque = (config.opaque for config in allocation.devices.config)
    parameters = (o.parameters for o in opaque if o is not None and o.driver == DRIVER)
    return {str(p["domainID"]) for p in parameters if isinstance(p, dict) and p.get("domainID")}


def claim_nodes(claim: ResourceClaim) -> set[str]:
    return {result.pool for result in claim.results}


def partitions_of(card: NVLinkNode) -> set[str]:
    """Where the node is, and where channels that it holds were given."""
    return {card.status.partition, *(held.partition for held in card.status.held_channels)} - {""}


def allows_all(namespace: Namespace | None) -> bool:
    return namespace is not None and namespace.metadata.labels.get(ALL_CHANNELS_LABEL) == ALL_CHANNELS_ALLOWED


def clique_of(node: Node) -> set[str]:
    return {node.metadata.labels.get(CLIQUE_LABEL, "")} - {""}


class Observed:
    def __init__(self) -> None:
        self.domains: Store[ComputeDomain] = Store(
            uid=lambda domain: [domain.metadata.uid],
            template=lambda domain: [Key(domain.metadata.namespace, domain.template_name)],
        )
        self.claims: Store[ResourceClaim] = Store(domain=domain_uids, node=claim_nodes)
        self.templates: Store[ResourceClaimTemplate] = Store()
        self.partitions: Store[NVLinkPartition] = Store(
            holder=lambda partition: {entry.compute_domain.uid for entry in partition.status.channels},
            member=lambda p: {*(member.node for member in p.status.members), *p.status.awaited},
        )
        self.cards: Store[NVLinkNode] = Store(partition=partitions_of)
        self.nodes: Store[Node] = Store(clique=clique_of)
        self.namespaces: Store[Namespace] = Store()

    def reflectors(self, client: Client) -> list[Reflector[Any]]:
        return [
            Reflector(client, COMPUTE_DOMAINS, self.domains),
            Reflector(client, RESOURCE_CLAIMS, self.claims),
            Reflector(client, RESOURCE_CLAIM_TEMPLATES, self.templates),
            Reflector(client, NVLINK_PARTITIONS, self.partitions),
            Reflector(client, NVLINK_NODES, self.cards),
            Reflector(client, NODES, self.nodes),
            Reflector(client, NAMESPACES, self.namespaces),
        ]

    def domain(self, uid: str) -> ComputeDomain | None:
        return next(iter(self.domains.by("uid", uid)), None)

    def allocated_claims(self, domain: ComputeDomain) -> list[ResourceClaim]:
        """Only those in its own namespace: a claim elsewhere that names it has no part in it."""
        namespace = domain.metadata.namespace
        return [c for c in self.claims.by("domain", domain.metadata.uid) if c.metadata.namespace == namespace]

    def may_open_all(self, domain: ComputeDomain) -> bool:
        """Whether its namespace may open every channel of a partition; an administrator says so by a label."""
        return allows_all(self.namespaces.get(Key("", domain.metadata.namespace)))

    def is_refused(self, domain: ComputeDomain) -> bool:
        return domain.allocation_mode is AllocationMode.ALL and not self.may_open_all(domain)

    def partitions_of_node(self, node: str) -> set[str]:
        """By membership, by what the hardware says now, and by what it holds; and where it is awaited."""
        names = {partition.metadata.name for partition in self.partitions.by("member", node)}
        card = self.cards.get(Key("", node))
        return names | (partitions_of(card) if card else set())
