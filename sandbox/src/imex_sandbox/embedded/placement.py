"""Which nodes can run a pod, and why others cannot: the filters of kube-scheduler, in its order and its words."""

import re
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache

from imex_sandbox.embedded.allocation import Unschedulable
from imex_sandbox.embedded.labels import labels_of, matches, node_selector, node_term
from imex_sandbox.embedded.statuses import Json

_UNITS = {
    **{f"{prefix}i": Decimal(1024**power) for power, prefix in enumerate("KMGTPE", 1)},
    **{prefix: Decimal(1000**power) for power, prefix in enumerate("kMGTPE", 1)},
    "m": Decimal("0.001"),
    "u": Decimal("0.000001"),
    "n": Decimal("0.000000001"),
}
_LARGEST_EXPONENT = 1000
_QUANTITY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")


class Nodes:
    """All nodes with their pods, and what is asked of both for every pod and node, computed once."""

    def __init__(self, nodes: list[Json], pods: dict[str, list[Json]]) -> None:
        """`pods` are by node, without those that have ended."""
        self.nodes = nodes
        self.pods: dict[str, list[Json]] = {}
        self.count = 0
        self.requested: dict[str, dict[str, Decimal]] = {}
        self.repelling: list[tuple[Json | None, Json, Json]] = []
        """Nodes of pods with required anti-affinity, the pods, and its terms."""
        by_name = {node["metadata"]["name"]: node for node in nodes}
        self._node = by_name.get
        for name, found in pods.items():
            for pod in found:
                self.add(name, pod)

    def add(self, node: str, pod: Json) -> None:
        self.pods.setdefault(node, []).append(pod)
        self.count += 1
        total = self.requested.setdefault(node, {})
        for name, amount in requests(pod["spec"]).items():
            total[name] = total.get(name, Decimal(0)) + amount
        self.repelling += [(self._node(node), pod, term) for term in _required(pod, "podAntiAffinity")]

    def on(self, node: Json) -> list[Json]:
        return self.pods.get(node["metadata"]["name"], [])


@lru_cache(4096)
def quantity(text: str) -> Decimal:
    """Raises ValueError."""
    if not _QUANTITY.fullmatch(text):
        raise ValueError(f"quantity {text!r}")
    for suffix, factor in _UNITS.items():
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * factor
    return Decimal(text)


def is_in_range(amount: Decimal) -> bool:
    """Others would keep a processor busy for minutes, also that of a real API server."""
    return not amount or abs(amount.adjusted()) <= _LARGEST_EXPONENT


def obstacle(pod: Json, node: Json, cluster: Nodes) -> str:
    """Why this node cannot run the pod; empty if it can. Devices are not looked at (`allocation`)."""
    spec = pod["spec"]
    return (
        _taint(spec, node)
        or ("" if _selected(spec, node) else "node(s) didn't match Pod's node affinity/selector")
        or _ports(spec, node, cluster)
        or _resources(spec, node, cluster)
        or _spread(pod, node, cluster)
        or _pod_affinity(pod, node, cluster)
    )


def preference(pod: Json, node: Json, cluster: Nodes) -> tuple[int, int, str]:
    """The smallest is the best: most preferred, then least used, then by name."""
    spec, score = pod["spec"], 0
    affinity = spec.get("affinity") or {}
    for one in (affinity.get("nodeAffinity") or {}).get("preferredDuringSchedulingIgnoredDuringExecution") or ():
        score += one["weight"] if node_term(one["preference"], node) else 0
    for name, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
        for one in (affinity.get(name) or {}).get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            term = one["podAffinityTerm"]
            if any(_shares(term, node, other) for other in _matching(term, pod, cluster)):
                score += sign * one["weight"]
    score -= sum(taint["effect"] == "PreferNoSchedule" for taint in _untolerated(spec, node))
    return -score, len(cluster.on(node)), node["metadata"]["name"]


def summary(reasons: Iterable[str], total: int) -> str:
    """`0/4 nodes are available: 2 Insufficient cpu, 2 node(s) had untolerated taint(s).`"""
    counted = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"0/{total} nodes are available" + (f": {', '.join(counted)}." if counted else ".")


def _untolerated(spec: Json, node: Json) -> list[Json]:
    tolerations = spec.get("tolerations") or ()
    taints = list((node.get("spec") or {}).get("taints") or ())
    return [taint for taint in taints if not any(tolerates(one, taint) for one in tolerations)]


def tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def _taint(spec: Json, node: Json) -> str:
    if (node.get("spec") or {}).get("unschedulable"):
        return "node(s) were unschedulable"
    if any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in _untolerated(spec, node)):
        return "node(s) had untolerated taint(s)"
    return ""


def _selected(spec: Json, node: Json) -> bool:
    labels = labels_of(node)
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return required is None or node_selector(required, node)


def _ports(spec: Json, node: Json, cluster: Nodes) -> str:
    wanted = _host_ports(spec)
    used = [port for pod in cluster.on(node) for port in _host_ports(pod["spec"])] if wanted else []
    for number, protocol, address in wanted:
        for other_number, other_protocol, other in used:
            same_address = address == other or "0.0.0.0" in (address, other)
            if (number, protocol) == (other_number, other_protocol) and same_address:
                return "node(s) didn't have free ports for the requested pod ports"
    return ""


def _host_ports(spec: Json) -> list[tuple[int, str, str]]:
    return [
        (port["hostPort"], port["protocol"], port.get("hostIP") or "0.0.0.0")
        for container in spec["containers"]
        for port in container.get("ports") or ()
        if port.get("hostPort")
    ]


def requests(spec: Json) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for container in spec["containers"]:
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, Decimal(0)) + quantity(amount)
    for container in spec.get("initContainers") or ():
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = max(total.get(name, Decimal(0)), quantity(amount))
    return total


def _resources(spec: Json, node: Json, cluster: Nodes) -> str:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    pods = cluster.on(node)
    if len(pods) + 1 > quantity(allocatable.get("pods", "0")):
        return "Too many pods"
    requested = cluster.requested.get(node["metadata"]["name"], {})
    for name, amount in requests(spec).items():
        used = requested.get(name, Decimal(0))
        if amount and used + amount > quantity(allocatable.get(name, "0")):
            return f"Insufficient {name}"
    return ""


def _spread(pod: Json, node: Json, cluster: Nodes) -> str:
    for constraint in pod["spec"].get("topologySpreadConstraints") or ():
        if constraint["whenUnsatisfiable"] != "DoNotSchedule":
            continue
        key = constraint["topologyKey"]
        for field, default in (("nodeAffinityPolicy", "Honor"), ("nodeTaintsPolicy", "Ignore")):
            if constraint.get(field, default) != default:
                raise Unschedulable(f"{field}: {constraint[field]} is not supported by the embedded scheduler")
        if key not in labels_of(node):
            return "node(s) didn't match pod topology spread constraints (missing required label)"
        counts: dict[str, int] = {}
        for other in cluster.nodes:
            if key in labels_of(other) and _selected(pod["spec"], other):
                domain = labels_of(other)[key]
                counts[domain] = counts.get(domain, 0) + sum(
                    _is_counted(constraint, pod, one) for one in cluster.on(other)
                )
        own = matches(constraint.get("labelSelector"), labels_of(pod))
        here = counts.get(labels_of(node)[key], 0) + own
        enough = len(counts) >= (constraint.get("minDomains") or 1)
        if here - (min(counts.values(), default=0) if enough else 0) > constraint["maxSkew"]:
            return "node(s) didn't match pod topology spread constraints"
    return ""


def _is_counted(constraint: Json, pod: Json, other: Json) -> bool:
    same = other["metadata"]["namespace"] == pod["metadata"]["namespace"]
    deleting = other["metadata"].get("deletionTimestamp")
    return same and not deleting and matches(constraint.get("labelSelector"), labels_of(other))


def _pod_affinity(pod: Json, node: Json, cluster: Nodes) -> str:
    for where, other, term in cluster.repelling:
        if _selects(term, other, pod) and _shares(term, node, where):
            return "node(s) didn't satisfy existing pods anti-affinity rules"
    for term in _required(pod, "podAffinity"):
        found = _matching(term, pod, cluster)
        # The first of a group would wait for itself otherwise.
        if not found and _selects(term, pod, pod) and term["topologyKey"] in labels_of(node):
            continue
        if not any(_shares(term, node, other) for other in found):
            return "node(s) didn't match pod affinity rules"
    for term in _required(pod, "podAntiAffinity"):
        if any(_shares(term, node, other) for other in _matching(term, pod, cluster)):
            return "node(s) didn't match pod anti-affinity rules"
    return ""


def _required(pod: Json, name: str) -> list[Json]:
    affinity = (pod["spec"].get("affinity") or {}).get(name) or {}
    return affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or []


def _matching(term: Json, pod: Json, cluster: Nodes) -> list[Json]:
    """The nodes of the pods that the term selects."""
    return [node for node in cluster.nodes if any(_selects(term, pod, other) for other in cluster.on(node))]


def _selects(term: Json, owner: Json, other: Json) -> bool:
    names = set(term.get("namespaces") or ())
    if "namespaceSelector" not in term and not names:
        names = {owner["metadata"]["namespace"]}
    everywhere = term.get("namespaceSelector") == {}
    inside = everywhere or other["metadata"]["namespace"] in names
    return inside and matches(term.get("labelSelector"), labels_of(other))


def _shares(term: Json, node: Json, other: Json | None) -> bool:
    if other is None:
        return False
    domain = labels_of(node).get(term["topologyKey"])
    return domain is not None and domain == labels_of(other).get(term["topologyKey"])
