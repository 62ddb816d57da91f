"""Where a pod with a channel could be scheduled: per partition, how many nodes fit, and what the others lack.

The scheduler says only how many nodes of the whole cluster lack something. A job needs nodes of one partition,
so that the question is a different one. Approximate where the scheduler knows more: volumes, ports, priorities
and devices of other DRA drivers are not considered.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.api.reasons import listed
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.noderules import obstacle
from imex_dra.diagnose.pods import ClusterPod
from imex_dra.diagnose.snapshot import Plain
from imex_dra.lint.pods import GPU
from imex_dra.picture.snapshot import is_ready

_QUANTITY = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+(?=\Z))?)([numkMGTPE]|[KMGTPE]i)?")
_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS |= {f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", 1)}
_LACKS = {
    GPU: "few free GPUs",
    "cpu": "few free CPUs",
    "memory": "little free memory",
    "ephemeral-storage": "little free ephemeral-storage",
}


NO_PODS = "without the pods that its affinity requires"
"""Nowhere in the cluster is a pod that its affinity selects, and it does not select the pod itself either."""


class PartitionFit(Struct, frozen=True, rename="camel"):
    """How many nodes of a partition could take the pod."""

    partition: str
    rack: str
    nodes: int
    fit: int
    lacking: dict[str, int]
    """What the other nodes lack: number of nodes by the first cause of each, the most frequent one first."""

    def __str__(self) -> str:
        causes = "; ".join(f"{count} {cause}" for cause, count in self.lacking.items())
        return f"{self.rack}: {self.fit} of {self.nodes} nodes fit" + (f"; {causes}" if causes else "")


def fits(cluster: Cluster, pod: ClusterPod) -> list[PartitionFit]:
    """For each partition, in natural order."""
    found = []
    for partition, nodes in cluster.fabric_nodes.items():
        lacks = [lack(cluster, pod, node) for node in nodes]
        counts = Counter(filter(None, lacks))
        found.append(
            PartitionFit(
                partition, cluster.rack(partition), len(nodes), lacks.count(""), dict(counts.most_common())
            )
        )
    return sorted(found, key=lambda fit: fit.rack)


def lack(cluster: Cluster, pod: ClusterPod, node: str) -> str:
    """The first thing that keeps the pod from the node; empty if it fits."""
    plain = cluster.plain_nodes.get(node)
    if plain is None:
        return "not in the snapshot"
    if not is_ready(cluster.nodes[node]):
        return "not Ready"
    if plain.get("spec", {}).get("unschedulable"):
        return "cordoned"
    return (
        _taint(pod, plain)
        or _selection(pod, plain)
        or _devices(cluster, pod, node)
        or _resources(cluster, pod, plain)
        or _affinity(cluster, pod, plain)
    )


def _taint(pod: ClusterPod, node: Plain) -> str:
    tolerations = pod.spec["tolerations"].plain() or []
    for taint in node.get("spec", {}).get("taints") or ():
        hard = taint.get("effect") in ("NoSchedule", "NoExecute")
        if hard and not any(_tolerates(toleration, taint) for toleration in tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"tainted {taint.get('key')}{value}:{taint.get('effect')}"
    return ""


def _tolerates(toleration: Plain, taint: Plain) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return toleration.get("key") == taint.get("key") and (toleration.get("value") or "") == (
        taint.get("value") or ""
    )


def _selection(pod: ClusterPod, node: Plain) -> str:
    labels = _labels(node)
    for key, value in (pod.spec["nodeSelector"].plain() or {}).items():
        if labels.get(key) != value:
            return f"without the label {key}={value}"
    required = pod.spec.at("affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution").plain() or {}
    terms = required.get("nodeSelectorTerms") or []
    if terms and not any(_matches_term(term, node) for term in terms):
        return "excluded by node affinity"
    return ""


def _matches_term(term: Plain, node: Plain) -> bool:
    name = {"metadata.name": node["metadata"].get("name", "")}
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    return all(_matches(one, _labels(node)) for one in expressions) and all(_matches(one, name) for one in fields)


def _matches(expression: Plain, labels: Mapping[str, str]) -> bool:
    key, values = expression.get("key", ""), expression.get("values") or []
    match expression.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt" as operator:
            try:
                own, other = int(labels[key]), int(values[0])
            except (KeyError, IndexError, ValueError):
                return False
            return own > other if operator == "Gt" else own < other
    return False


def _devices(cluster: Cluster, pod: ClusterPod, node: str) -> str:
    made = [cluster.claim_of(pod, claim) for claim in cluster.channel_claims(pod)]
    # A claim that pods share is allocated once, and keeps all of them on its node.
    allocated = [claim for claim in made if claim and claim.nodes]
    for claim in allocated:
        if node not in claim.nodes:
            return f"without claim {claim.metadata.name}, which is allocated on {listed(sorted(claim.nodes))}"
    claims = len(made) - len(allocated)
    if not claims:
        return ""
    published, used = cluster.devices.get(node, 0), len(cluster.claims_on.get(node, ()))
    if not published:
        return f"without channel devices ({obstacle(cluster, node) or 'not published'})"
    return "" if used + claims <= published else f"with all {published} channel devices in use"


def _resources(cluster: Cluster, pod: ClusterPod, node: Plain) -> str:
    free = free_resources(cluster, node)
    for resource, amount in requests(pod).items():
        if amount > free.get(resource, 0.0) + 1e-9:
            return f"with too {_LACKS.get(resource, f'few free {resource}')}"
    return ""


def free_resources(cluster: Cluster, node: Plain) -> dict[str, float]:
    free = {name: quantity(amount) for name, amount in (node.get("status", {}).get("allocatable") or {}).items()}
    for pod in cluster.pods_on.get(str(node["metadata"].get("name")), ()):
        for resource, amount in requests(pod).items():
            free[resource] = free.get(resource, 0.0) - amount
    return free


def requests(pod: ClusterPod) -> dict[str, float]:
    """What the scheduler reserves: the sum of the containers, or the largest init container."""
    total: dict[str, float] = {}
    largest: dict[str, float] = {}
    for container in pod.containers:
        resources = container.value["resources"].plain() or {}
        own = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, amount in own.items():
            if container.init and container.value["restartPolicy"].text != "Always":
                largest[name] = max(largest.get(name, 0.0), quantity(amount))
            else:
                total[name] = total.get(name, 0.0) + quantity(amount)
    return {name: max(total.get(name, 0.0), largest.get(name, 0.0)) for name in {*total, *largest}}


def quantity(text: object) -> float:
    """0 for what is no quantity."""
    found = _QUANTITY.fullmatch(str(text))
    return float(found[1]) * _UNITS.get(found[2], 1.0) if found else 0.0


def _affinity(cluster: Cluster, pod: ClusterPod, node: Plain) -> str:
    for kind, wanted in (("podAffinity", True), ("podAntiAffinity", False)):
        path = f"affinity.{kind}.requiredDuringSchedulingIgnoredDuringExecution"
        for term in pod.spec.at(path).plain() or ():
            key = term.get("topologyKey", "")
            places = set(_places(cluster, pod, term, key))
            here = _labels(node).get(key)
            if wanted and places and here not in places:
                return _elsewhere(cluster, key, places)
            if wanted and not places and not _selects(pod, pod, term):
                return NO_PODS
            if not wanted and here is not None and here in places:
                return "with a pod that its anti-affinity excludes"
    return ""


def _elsewhere(cluster: Cluster, key: str, places: set[str]) -> str:
    if key == CLIQUE_LABEL:
        return f"outside of {', '.join(sorted(map(cluster.rack, places)))}, where pods of its affinity run"
    return f"outside of the {key} where pods of its affinity run"


def _places(cluster: Cluster, pod: ClusterPod, term: Plain, key: str) -> Iterator[str]:
    """Values of the topology key where pods run that the term selects."""
    for other in cluster.pods:
        if other.node and not other.ended and other.uid != pod.uid and _selects(pod, other, term):
            place = _labels(cluster.plain_nodes.get(other.node, {})).get(key)
            if place is not None:
                yield place


def _selects(pod: ClusterPod, other: ClusterPod, term: Plain) -> bool:
    namespaces = term.get("namespaces") or [pod.namespace]
    selector = term.get("labelSelector")
    if selector is None or other.namespace not in namespaces:
        return False
    equal = all(other.labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return equal and all(_matches(one, other.labels) for one in selector.get("matchExpressions") or ())


def _labels(node: Plain) -> dict[str, Any]:
    return (node.get("metadata") or {}).get("labels") or {}
