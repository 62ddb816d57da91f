"""Where the pods of a template may run, as far as the manifest says it."""

from collections.abc import Iterator
from typing import NamedTuple

from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.lint.pods import Pods
from imex_dra.lint.values import Value

NVLINK_DOMAIN_LABEL = "ds.coreweave.com/nvlink.domain"
"""Of a rack. The default partition of a rack is all of it."""

PARTITION_KEYS = (CLIQUE_LABEL, NVLINK_DOMAIN_LABEL)
HOSTNAME = "kubernetes.io/hostname"
NODE_GPUS = 4
"""Of an NVL72 node."""
PARTITION_NODES = 18
"""Of an NVL72 rack."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_TOPOLOGY_ANNOTATIONS = (
    "kueue.x-k8s.io/podset-required-topology",
    "kueue.x-k8s.io/podset-slice-required-topology",
    "alpha.jobset.sigs.k8s.io/exclusive-topology",
    "leaderworkerset.sigs.k8s.io/exclusive-topology",
    "kai.scheduler/topology-required-placement",
)
_OPERATOR_LABELS = (
    "batch.kubernetes.io/",
    "jobset.sigs.k8s.io/",
    "leaderworkerset.sigs.k8s.io/",
    "training.kubeflow.org/",
    "ray.io/",
    "apps.kubernetes.io/",
    "statefulset.kubernetes.io/",
    "job-name",
    "controller-uid",
    "controller-revision-hash",
    "pod-template-hash",
    "pod-template-generation",
)
"""Labels that controllers add to pods: whether a selector for them fits cannot be known from the files."""


class Requirement(NamedTuple):
    """One requirement on labels of nodes."""

    key: Value
    """Its content, or for nodeSelector its line only."""
    label: str
    values: tuple[str, ...]


def required_terms(pods: Pods, affinity: str = "podAffinity") -> tuple[Value, ...]:
    return pods.spec["affinity"][affinity][_REQUIRED].elements()


def preferred_terms(pods: Pods) -> tuple[Value, ...]:
    preferred = pods.spec.at("affinity.podAffinity")[_PREFERRED].elements()
    return tuple(term["podAffinityTerm"] for term in preferred)


def node_requirements(pods: Pods) -> Iterator[Requirement]:
    """Of nodeSelector and required node affinity. Terms of the latter are alternatives; all are listed."""
    yield from _selected(pods)
    for term in _node_terms(pods):
        yield from _expressions(term)


def _selected(pods: Pods) -> Iterator[Requirement]:
    for label, value in pods.spec["nodeSelector"].items():
        yield Requirement(value, label, (value.scalar,))


def _node_terms(pods: Pods) -> tuple[Value, ...]:
    return pods.spec["affinity"]["nodeAffinity"][_REQUIRED]["nodeSelectorTerms"].elements()


def _expressions(term: Value) -> Iterator[Requirement]:
    for expression in term["matchExpressions"].elements():
        key = expression["key"]
        in_ = expression["operator"].text == "In"
        values = tuple(value.scalar for value in expression["values"].elements()) if in_ else ()
        yield Requirement(key, key.text, values)


def held_by_affinity(pods: Pods) -> bool:
    """To other pods, or to the nodes of one partition."""
    together = any(term["topologyKey"].text in PARTITION_KEYS for term in required_terms(pods))
    return together or _pinned_by(pods, PARTITION_KEYS)


def held_together(pods: Pods) -> bool:
    """Whether the pods of this template stay in one partition."""
    on_one_node = pods.spec["nodeName"].filled or _pinned_by(pods, (HOSTNAME,))
    return on_one_node or held_by_affinity(pods) or _held_by_annotation(pods)


def _pinned_by(pods: Pods, labels: tuple[str, ...]) -> bool:
    """To one value of a label. Terms of node affinity are alternatives: each must require the same value."""
    if any(one.label in labels for one in _selected(pods)):
        return True
    pinned = [
        {(r.label, *r.values) for r in _expressions(term) if len(r.values) == 1} for term in _node_terms(pods)
    ]
    return any(label in labels for label, _ in set.intersection(*pinned)) if pinned else False


def _held_by_annotation(pods: Pods) -> bool:
    around = (pods.object.metadata, pods.template.value["metadata"], *pods.template.annotated)
    return any(
        metadata["annotations"][name].text in PARTITION_KEYS
        for metadata in around
        for name in _TOPOLOGY_ANNOTATIONS
    )


def apart(pods: Pods) -> bool:
    """Whether no two of the pods may be on one node."""
    terms = required_terms(pods, "podAntiAffinity")
    return any(term["topologyKey"].text == HOSTNAME and selects(term, pods.labels) for term in terms)


def needs_nodes(pods: Pods) -> int | None:
    """The number of NVL72 nodes that the pods need at least; None if the manifest does not say it."""
    number = pods.template.pods
    if number is None:
        return None
    if apart(pods):
        return number
    if not pods.gpus:
        return None
    per_node = max(NODE_GPUS // pods.gpus, 1)
    return -(-number // per_node)


def selects(term: Value, labels: dict[str, str]) -> bool:
    """Whether an affinity term selects pods with these labels. What controllers add to pods counts as fitting."""
    selector = term["labelSelector"]
    if not selector.filled:
        return False  # unlike an empty selector, which selects all
    fits = all(
        _added_later(key, labels) or labels.get(key) == value.scalar
        for key, value in selector["matchLabels"].items()
    )
    return fits and all(_matches(expression, labels) for expression in selector["matchExpressions"].elements())


def _matches(expression: Value, labels: dict[str, str]) -> bool:
    key = expression["key"].text
    values = [value.scalar for value in expression["values"].elements()]
    if _added_later(key, labels):
        return True
    match expression["operator"].text:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return True


def _added_later(key: str, labels: dict[str, str]) -> bool:
    return key not in labels and key.startswith(_OPERATOR_LABELS)
