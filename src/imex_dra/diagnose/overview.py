"""What `imex status` shows of a cluster, as plain values: partitions, ComputeDomains, daemons, findings."""

import string
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from imex_dra.api.meta import Key, key_of
from imex_dra.api.nvlinkpartition import ChannelState
from imex_dra.api.views import ResourceClaim
from imex_dra.diagnose.cluster import Cluster, domain_uids
from imex_dra.diagnose.daemonrules import old_daemons
from imex_dra.diagnose.pods import ClusterPod
from imex_dra.diagnose.rule import Finding
from imex_dra.diagnose.rules import diagnose
from imex_dra.diagnose.scope import EVERYTHING, Scope, of_domain, of_namespace, of_partition
from imex_dra.picture.model import ClusterModel, DomainClaims, RackNode
from imex_dra.picture.snapshot import Snapshot, build_model

OTHERS = "+"
"""Stands for all ComputeDomains without a letter of their own."""


class PartitionStatus(Struct, frozen=True, rename="camel"):
    name: str
    rack: str
    state: str
    nodes: int
    free_nodes: tuple[str, ...]
    """Nodes that can take a pod with a channel, and have none."""
    channels: int
    """Assigned."""


class DomainStatus(Struct, frozen=True, rename="camel"):
    namespace: str
    name: str
    status: str
    message: str
    channels: dict[str, int]
    """By rack."""
    pods: int


class DaemonStatus(Struct, frozen=True, rename="camel"):
    """An IMEX daemon with an old version."""

    node: str
    pod: str
    images: tuple[str, ...]
    claims: int
    may_restart: bool


class Overview(Struct, frozen=True, rename="camel"):
    taken_at: str
    partitions: tuple[PartitionStatus, ...]
    compute_domains: tuple[DomainStatus, ...]
    old_daemons: tuple[DaemonStatus, ...]
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    """Sentences: what could not be read."""

    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


@dataclass(frozen=True)
class Selection:
    """What to show; empty: everything."""

    namespace: str = ""
    partition: str = ""
    """Name of the NVLinkPartition, or of its rack."""
    domain: Key | None = None

    def partitions(self, cluster: Cluster) -> list[str]:
        names = sorted({*cluster.fabric_nodes, *cluster.partitions}, key=cluster.rack)
        return [name for name in names if self.partition in ("", name, cluster.rack(name))]

    def includes(self, cluster: Cluster, node: str) -> bool:
        """Whether the node is in a partition that is shown."""
        partition = cluster.partition_of(node)
        return self.partition in ("", partition, cluster.rack(partition))

    def domains(self, cluster: Cluster) -> list[Key]:
        in_partitions = {
            entry.compute_domain.uid
            for name in self.partitions(cluster)
            if name in cluster.partitions
            for entry in cluster.partitions[name].status.channels
        }
        return sorted(
            key
            for key, domain in cluster.domains.items()
            if self.namespace in ("", key.namespace)
            and self.domain in (None, key)
            and (not self.partition or domain.metadata.uid in in_partitions)
        )

    def scope(self, cluster: Cluster) -> Scope:
        if self.domain is not None:
            return of_domain(cluster, self.domain)
        if self.namespace:
            return of_namespace(cluster, self.namespace)
        chosen = self.partitions(cluster)
        return of_partition(cluster, chosen[0]) if self.partition and chosen else EVERYTHING


def overview(cluster: Cluster, selection: Selection) -> Overview:
    return Overview(
        cluster.snapshot.taken_at,
        tuple(_partition(cluster, name) for name in selection.partitions(cluster)),
        tuple(_domain(cluster, selection, key) for key in selection.domains(cluster)),
        tuple(
            DaemonStatus(old.pod.node, old.pod.name, old.images, old.claims, not old.claims)
            for old in old_daemons(cluster)
            if cluster.partition_of(old.pod.node) in selection.partitions(cluster)
        ),
        tuple(diagnose(cluster, selection.scope(cluster))),
        cluster.snapshot.sentences,
    )


def _partition(cluster: Cluster, name: str) -> PartitionStatus:
    nodes = cluster.fabric_nodes.get(name, [])
    found = cluster.partitions.get(name)
    assigned = [e for e in found.status.channels if e.state is ChannelState.ASSIGNED] if found else []
    return PartitionStatus(
        name,
        cluster.rack(name),
        found.status.summary.state.value if found else "",
        len(nodes),
        tuple(node for node in nodes if cluster.is_free(node)),
        len(assigned),
    )


def _domain(cluster: Cluster, selection: Selection, key: Key) -> DomainStatus:
    domain = cluster.domains[key]
    channels = {cluster.rack(name): cluster.channel(name, domain) for name in cluster.partitions}
    return DomainStatus(
        key.namespace,
        key.name,
        domain.status.summary.status or domain.status.status.value,
        domain.status.summary.message,
        {rack: channel for rack, channel in sorted(channels.items()) if channel is not None},
        sum(selection.includes(cluster, pod.node) for pod in cluster.pods_of_domain.get(domain.metadata.uid, ())),
    )


def model(cluster: Cluster, selection: Selection) -> ClusterModel:
    """What is drawn. Letters follow the names of the ComputeDomains, so that two calls agree.

    A selection says which ComputeDomains are shown and what is counted, never how much of a node is in use.
    """
    letters = {
        cluster.domains[key].metadata.uid: string.ascii_uppercase[number % 26]
        for number, key in enumerate(selection.domains(cluster))
    }
    whole = cluster.picture
    partitions = set(selection.partitions(cluster))
    nodes = [one for one in whole.nodes if cluster.partition_of(one.metadata.name) in partitions]
    drawn = build_model(replace(whole, nodes=nodes) if selection.partition else whole, letters)
    racks = tuple(
        replace(rack, nodes=tuple(_with_others(cluster, one) for one in rack.nodes)) for rack in drawn.racks
    )
    counted = Snapshot(
        claims=[one for one in whole.claims if _counts_claim(cluster, selection, one)],
        pods=[one for one in whole.pods if _counts_pod(cluster, selection, cluster.pods_by_key[key_of(one)])],
    )
    return replace(drawn, racks=racks, counts=build_model(counted, letters).counts)


def _with_others(cluster: Cluster, node: RackNode) -> RackNode:
    """With the claims of ComputeDomains that are not shown, or do not exist any more."""
    others = len(cluster.claims_on.get(node.name, ())) - node.claims
    return replace(node, domains=(*node.domains, DomainClaims(OTHERS, others))) if others > 0 else node


def _counts_claim(cluster: Cluster, selection: Selection, claim: ResourceClaim) -> bool:
    selected = selection.domain is None or cluster.domains[selection.domain].metadata.uid in domain_uids(claim)
    return (
        selected
        and selection.namespace in ("", claim.metadata.namespace)
        and (not selection.partition or any(selection.includes(cluster, node) for node in claim.nodes))
    )


def _counts_pod(cluster: Cluster, selection: Selection, pod: ClusterPod) -> bool:
    domains = [found for claim in cluster.channel_claims(pod) if (found := cluster.domain_of(pod, claim))]
    return (
        selection.namespace in ("", pod.namespace)
        and (selection.domain is None or selection.domain in map(key_of, domains))
        and selection.includes(cluster, pod.node)
    )
