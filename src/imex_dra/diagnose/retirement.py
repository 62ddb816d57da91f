"""What still uses the transparent DaemonSet model in a cluster, and the order in which to retire it.

The order follows from what cannot run together: only one nvidia-imex runs on a node, so the legacy DaemonSet goes
before the driver comes; and pods that use the DaemonSet's channel end before it goes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from imex_dra.api.meta import Key
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.views import DAEMON_SETS, PODS
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.pods import ClusterPod, Owner
from imex_dra.diagnose.rule import Problem
from imex_dra.diagnose.rules import find_rule
from imex_dra.diagnose.setuprules import legacy_daemon_sets
from imex_dra.picture.snapshot import natural_order

_OLD_REQUESTS = ("IMEX150", "IMEX151")
_SHARED = "IMEX411"


class StepState(StrEnum):
    DONE = "done"
    TO_DO = "to do"
    UNKNOWN = "unknown"
    """What it depends on could not be read."""


@dataclass(frozen=True)
class LegacyWorkload:
    owner: Owner
    uses: tuple[str, ...]
    """Sentences."""
    pods: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    state: StepState
    title: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Retirement:
    workloads: tuple[LegacyWorkload, ...]
    steps: tuple[Step, ...]
    missing: tuple[str, ...]

    @property
    def finished(self) -> bool:
        return all(step.state is StepState.DONE for step in self.steps)

    def plain(self) -> dict[str, Any]:
        return {
            "workloads": [
                {
                    "kind": one.owner.kind,
                    "namespace": one.owner.namespace,
                    "name": one.owner.name,
                    "uses": list(one.uses),
                    "pods": one.pods,
                    "nodes": list(one.nodes),
                }
                for one in self.workloads
            ],
            "steps": [
                {"state": str(step.state), "title": step.title, "details": list(step.details)}
                for step in self.steps
            ],
            "notRead": list(self.missing),
        }


def retirement(cluster: Cluster) -> Retirement:
    workloads = legacy_workloads(cluster)
    steps = (
        _manifests(cluster, workloads),
        _pods(cluster, workloads),
        _daemon_sets(cluster),
        _driver(cluster),
        _shared(cluster),
    )
    return Retirement(workloads, steps, tuple(cluster.snapshot.sentences))


def legacy_workloads(cluster: Cluster) -> tuple[LegacyWorkload, ...]:
    """Those with pods that have not ended, without what provides the channels."""
    providers = {Owner("DaemonSet", key.namespace, key.name) for key in legacy_daemon_sets(cluster)}
    uses: dict[Owner, dict[str, None]] = {}
    pods: dict[Owner, dict[Key, ClusterPod]] = {}
    for id in _OLD_REQUESTS:
        for problem in _problems(cluster, id):
            pod = cluster.pods_by_key[problem.key]
            owner = cluster.workload(pod)
            if owner not in providers:
                uses.setdefault(owner, {})[problem.message] = None
                pods.setdefault(owner, {})[pod.key] = pod
    return tuple(
        LegacyWorkload(owner, tuple(uses[owner]), len(pods[owner]), _nodes(pods[owner].values()))
        for owner in sorted(uses, key=lambda owner: (owner.namespace, owner.kind, natural_order(owner.name)))
    )


def _nodes(pods: Iterable[ClusterPod]) -> tuple[str, ...]:
    return tuple(sorted({pod.node for pod in pods if pod.node}, key=natural_order))


def _problems(cluster: Cluster, id: str) -> list[Problem]:
    rule = find_rule(id)
    assert rule is not None
    return rule.problems(cluster)


def _state(cluster: Cluster, plural: str, *, to_do: bool) -> StepState:
    if to_do:
        return StepState.TO_DO
    return StepState.DONE if cluster.has(plural) else StepState.UNKNOWN


def _manifests(cluster: Cluster, workloads: tuple[LegacyWorkload, ...]) -> Step:
    title = "change the manifests of workloads that ask for channels in the old way: imex migrate FILE"
    details = tuple(f"{one.owner}: {use}" for one in workloads for use in one.uses)
    return Step(_state(cluster, PODS.plural, to_do=bool(workloads)), title, details)


def _pods(cluster: Cluster, workloads: tuple[LegacyWorkload, ...]) -> Step:
    """The partition with the fewest first: it is the first that can change to the driver."""
    title = "let their pods end, one partition after the other, and start no new ones"
    by_partition: dict[str, list[str]] = {}
    for one in workloads:
        for node in one.nodes:
            by_partition.setdefault(cluster.partition_of(node), []).append(node)
    ordered = sorted(by_partition.items(), key=lambda item: (len(item[1]), item[0]))
    details = [
        f"{cluster.rack(partition) if partition else 'nodes without a partition'}: "
        + ", ".join(sorted(set(nodes), key=natural_order))
        for partition, nodes in ordered
    ]
    return Step(_state(cluster, PODS.plural, to_do=bool(details)), title, tuple(details))


def _daemon_sets(cluster: Cluster) -> Step:
    title = "delete the nvidia-imex DaemonSet: only one nvidia-imex can run on a node"
    found = legacy_daemon_sets(cluster)
    details = tuple(f"kubectl -n {key.namespace} delete daemonset {key.name}" for key in found)
    return Step(_state(cluster, DAEMON_SETS.plural, to_do=bool(found)), title, details)


def _driver(cluster: Cluster) -> Step:
    title = "install imex-dra, after imex preflight has no errors; then apply the changed manifests"
    absent = not cluster.nvlink_nodes and (
        cluster.has(NVLINK_NODES.plural)
        or any(one.plural == NVLINK_NODES.plural and one.not_served for one in cluster.snapshot.missing)
    )
    return Step(_state(cluster, NVLINK_NODES.plural, to_do=absent), title)


def _shared(cluster: Cluster) -> Step:
    title = "give each workload a ComputeDomain of its own: imex migrate FILE"
    details = tuple(problem.message for problem in _problems(cluster, _SHARED))
    return Step(_state(cluster, PODS.plural, to_do=bool(details)), title, details)
