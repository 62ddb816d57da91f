"""Which findings concern a reader: of a namespace, a ComputeDomain, a pod, a node, or a partition.

A finding on a node concerns the pods that run there, and those of their ComputeDomains; a finding on the driver
concerns all.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from imex_dra.api.meta import Key
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.pods import ClusterPod
from imex_dra.diagnose.rule import Problem

_OF_ALL = {"Cluster", "DeviceClass", "Lease"}


@dataclass(frozen=True)
class Scope:
    everything: bool = False
    pods: frozenset[Key] = frozenset()
    domains: frozenset[Key] = frozenset()
    nodes: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()

    def concerns(self, cluster: Cluster, problem: Problem) -> bool:
        if self.everything or problem.kind in _OF_ALL:
            return True
        match problem.kind:
            case "Pod":
                return bool(({problem.key} | problem.pods) & self.pods)
            case "ComputeDomain":
                return problem.key in self.domains
            case "NVLinkPartition":
                # Of nodes that cannot reach each other, two must be of the reader; others concern the partition.
                return problem.key.name in self.partitions and (
                    not problem.nodes or bool(problem.nodes & self.nodes)
                )
        return bool(problem.nodes & self.nodes)


EVERYTHING = Scope(everything=True)


def of_pods(cluster: Cluster, pods: Iterable[ClusterPod], domains: Iterable[Key] = ()) -> Scope:
    """Pods, their ComputeDomains, and the nodes and partitions of these."""
    chosen = list(pods)
    own = {
        Key(domain.metadata.namespace, domain.metadata.name)
        for pod in chosen
        for claim in cluster.channel_claims(pod)
        if (domain := cluster.domain_of(pod, claim))
    } | set(domains)
    nodes = {pod.node for pod in chosen if pod.node and cluster.channel_claims(pod) and not pod.ended}
    nodes |= {node for key in own if key in cluster.domains for node in _nodes(cluster, key)}
    return Scope(
        pods=frozenset(pod.key for pod in chosen),
        domains=frozenset(own),
        nodes=frozenset(nodes),
        partitions=frozenset(filter(None, map(cluster.partition_of, nodes))),
    )


def _nodes(cluster: Cluster, domain: Key) -> set[str]:
    uid = cluster.domains[domain].metadata.uid
    return {pod.node for pod in cluster.pods_of_domain.get(uid, ()) if pod.node}


def of_namespace(cluster: Cluster, namespace: str) -> Scope:
    domains = [key for key in cluster.domains if key.namespace == namespace]
    return of_pods(cluster, [pod for pod in cluster.pods if pod.namespace == namespace], domains)


def of_domain(cluster: Cluster, domain: Key) -> Scope:
    uid = cluster.domains[domain].metadata.uid
    return of_pods(cluster, cluster.pods_of_domain.get(uid, ()), [domain])


def of_nodes(cluster: Cluster, nodes: Iterable[str]) -> Scope:
    chosen = frozenset(nodes)
    return Scope(nodes=chosen, partitions=frozenset(filter(None, map(cluster.partition_of, chosen))))


def of_partition(cluster: Cluster, partition: str) -> Scope:
    nodes = frozenset(cluster.fabric_nodes.get(partition, ()))
    pods = [pod for pod in cluster.claiming if pod.node in nodes]
    scope = of_pods(cluster, pods)
    return Scope(pods=scope.pods, domains=scope.domains, nodes=nodes, partitions=frozenset({partition}))
