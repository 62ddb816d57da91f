"""The controller's local copies of cluster objects: one store per kind, with the indexes that reconcilers need."""

from collections.abc import Iterable
from typing import Any

from imex_dra.api.computedomain import COMPUTE_DOMAINS, AllocationMode, ComputeDomain
from imex_dra.api.meta import Key, Resource
from imex_dra.api.names import (
    ALL_CHANNELS_ALLOWED,
    ALL_CHANNELS_LABEL,
    CLIQUE_LABEL,
    RELEASE_ANNOTATION,
    RELEASE_NOW,
)
from imex_dra.api.nvlinknode import NVLINK_NODES, NVLinkNode
from imex_dra.api.nvlinkpartition import (
    CLIQUE_LABELS,
    NVLINK_PARTITIONS,
    ChannelState,
    MemberState,
    NVLinkPartition,
)
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
from imex_dra.controller.trimmed import trimmed_claim, trimmed_node, trimmed_nvlink_node
from imex_dra.kube.client import Client
from imex_dra.kube.conditions import find_condition
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store


class Caches:
    def __init__(self) -> None:
        self.compute_domains: Store[ComputeDomain] = Store(
            uid=lambda domain: [domain.metadata.uid],
            template=lambda domain: [Key(domain.metadata.namespace, domain.template_name)],
            namespace=lambda domain: [domain.metadata.namespace],
            partition=lambda domain: {listed.name for listed in domain.status.partitions},
        )
        self.claims: Store[ResourceClaim] = Store(
            trimmed_claim,
            domain=lambda claim: claim.domain_uids,
            waiting=lambda claim: claim.waits_for_domain_uids,
            node=lambda claim: claim.nodes,
        )
        self.templates: Store[ResourceClaimTemplate] = Store()
        self.partitions: Store[NVLinkPartition] = Store(
            holder=holders,
            node=lambda p: {*(member.node for member in p.status.members), *p.status.pending_reports},
            label_differs=label_differs,
        )
        self.nvlink_nodes: Store[NVLinkNode] = Store(trimmed_nvlink_node, partition=reported_partitions)
        self.nodes: Store[Node] = Store(trimmed_node, clique=clique_label)
        self.namespaces: Store[Namespace] = Store()

    def reflectors(self, client: Client) -> list[Reflector[Any]]:
        kinds: list[tuple[Resource[Any], Store[Any]]] = [
            (COMPUTE_DOMAINS, self.compute_domains),
            (RESOURCE_CLAIMS, self.claims),
            (RESOURCE_CLAIM_TEMPLATES, self.templates),
            (NVLINK_PARTITIONS, self.partitions),
            (NVLINK_NODES, self.nvlink_nodes),
            (NODES, self.nodes),
            (NAMESPACES, self.namespaces),
        ]
        return [Reflector(client, resource, store, gradual=True) for resource, store in kinds]

    def compute_domain(self, uid: str) -> ComputeDomain | None:
        return next(iter(self.compute_domains.by("uid", uid)), None)

    def allocated_claims(self, domain: ComputeDomain) -> list[ResourceClaim]:
        # A claim in another namespace that names the ComputeDomain must neither get its channel nor block its
        # deletion.
        namespace = domain.metadata.namespace
        return [c for c in self.claims.by("domain", domain.metadata.uid) if c.metadata.namespace == namespace]

    def waiting_claims(self, domain: ComputeDomain) -> list[ResourceClaim]:
        """Claims of pods that the scheduler has not allocated yet."""
        namespace = domain.metadata.namespace
        return [c for c in self.claims.by("waiting", domain.metadata.uid) if c.metadata.namespace == namespace]

    def devices_in_use(self, node: str) -> int:
        return sum(result.pool == node for claim in self.claims.by("node", node) for result in claim.results)

    def domains_on(self, nodes: Iterable[str]) -> set[str]:
        """UIDs of the ComputeDomains with an allocated claim on one of the nodes."""
        return {uid for node in nodes for claim in self.claims.by("node", node) for uid in claim.domain_uids}

    def any_unreachable(self, nodes: Iterable[str]) -> bool:
        """Whether one of the nodes reports a member that it cannot reach."""
        reports = (self.nvlink_nodes.get(Key("", node)) for node in nodes)
        return any(report is not None and report.status.unreachable for report in reports)

    def partitions_of_domain(self, domain: ComputeDomain, nodes: Iterable[str]) -> list[NVLinkPartition]:
        """Those with one of these nodes, and those in which the ComputeDomain has a channel; by name."""
        found = [*self.partitions.by("holder", domain.metadata.uid)]
        for node in nodes:
            found += self.partitions.by("node", node)
        return [*{p.metadata.name: p for p in sorted(found, key=lambda p: p.metadata.name)}.values()]

    def is_refused(self, domain: ComputeDomain) -> bool:
        """Whether it requests all channels of a partition although its namespace does not allow that."""
        if domain.allocation_mode is not AllocationMode.ALL:
            return False
        return not allows_all_channels(self.namespaces.get(Key("", domain.metadata.namespace)))

    def partitions_of_node(self, node: str) -> set[str]:
        """Partitions that list the node, and those that the node reports."""
        names = {partition.metadata.name for partition in self.partitions.by("node", node)}
        nvlink_node = self.nvlink_nodes.get(Key("", node))
        return names | (reported_partitions(nvlink_node) if nvlink_node else set())

    def memberships(self, node: str) -> set[str]:
        """Partitions that list the node as a member that is not leaving."""
        found = self.partitions.by("node", node)
        return {partition.metadata.name for partition in found if node in staying_nodes(partition)}


def holders(partition: NVLinkPartition) -> set[str]:
    """UIDs of the ComputeDomains that have a channel. Those that had one may be many, and no longer exist."""
    channels = partition.status.channels
    return {entry.compute_domain.uid for entry in channels if entry.state is ChannelState.ASSIGNED}


def label_differs(partition: NVLinkPartition) -> tuple[bool, ...]:
    """Whether the condition about clique labels names a node."""
    condition = find_condition(partition.status.conditions, CLIQUE_LABELS)
    return (True,) if condition is not None and condition.status == "False" else ()


def staying_nodes(partition: NVLinkPartition | None) -> set[str]:
    """Members that are not leaving."""
    members = partition.status.members if partition else ()
    return {member.node for member in members if member.state is not MemberState.LEAVING}


def pods_of(claims: Iterable[ResourceClaim]) -> list[str]:
    return sorted({f"{claim.metadata.namespace}/{pod}" for claim in claims for pod in claim.pods})


def reported_partitions(nvlink_node: NVLinkNode) -> set[str]:
    """The partition of the node, and the partitions that assigned the channels it holds."""
    return {nvlink_node.status.partition, *(held.partition for held in nvlink_node.status.held_channels)} - {""}


def allows_all_channels(namespace: Namespace | None) -> bool:
    return namespace is not None and namespace.metadata.labels.get(ALL_CHANNELS_LABEL) == ALL_CHANNELS_ALLOWED


def clique_label(node: Node) -> set[str]:
    return {node.metadata.labels.get(CLIQUE_LABEL, "")} - {""}


def is_node_ready(node: Node) -> bool:
    """A Node without a Ready condition counts as ready: there is no evidence that it is not."""
    return all(condition.status == "True" for condition in node.status.conditions if condition.type == "Ready")


def release_requested(domain: ComputeDomain) -> bool:
    """Whether a user wants the channel released although pods may still use it."""
    return domain.metadata.annotations.get(RELEASE_ANNOTATION) == RELEASE_NOW
