"""Rules: do the pods of a workload run in one NVLink partition?

Only there can they share memory. The scheduler does not know that: a ComputeDomain follows its pods.
"""

from collections.abc import Iterator

from imex_dra.api.names import CLIQUE_LABEL, DOMAIN_LABEL
from imex_dra.lint.findings import Severity
from imex_dra.lint.manifests import Manifests, nearest
from imex_dra.lint.placement import (
    HOSTNAME,
    NODE_GPUS,
    PARTITION_KEYS,
    PARTITION_NODES,
    held_by_affinity,
    held_together,
    needs_nodes,
    node_requirements,
    preferred_terms,
    required_terms,
    selects,
)
from imex_dra.lint.pods import Pods
from imex_dra.lint.rule import Problem, rule
from imex_dra.lint.workloads import PER_NODE

_AFFINITY = f"add required pod affinity with topologyKey {CLIQUE_LABEL}"
_NODE_SELECTOR = f"select the nodes of one partition by the label {CLIQUE_LABEL}"
_PARTITION = f"the NVLink partition of an NVL72 rack has {PARTITION_NODES} nodes of {NODE_GPUS} GPUs"
_SEVERAL = (
    "use one workload per partition; or, if its pods share memory only within a partition, accept several with the"
    " comment `# imex-lint: ignore IMEX140`"
)


def may_spread(manifests: Manifests, pods: Pods) -> bool:
    """Whether nothing says where the pods run, which claim a channel and are several."""
    return manifests.several(pods) and not held_together(pods) and not required_terms(pods)


@rule(
    "IMEX140",
    Severity.WARNING,
    "Pods of one workload may run in several NVLink partitions",
    why="""A ComputeDomain follows its pods, and the scheduler puts them anywhere. Pods in different partitions
    cannot share memory over NVLink. Pod affinity with topologyKey nvidia.com/gpu.clique that is required, not
    preferred, keeps them in one partition. A node selector for one partition, and the topology annotations of
    Kueue, JobSet and LeaderWorkerSet, count as well. A workload that needs more than the 18 nodes of a partition
    can run only in several: use one workload per partition, or accept that memory is shared within each partition
    only.""",
)
def partition_not_required(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.claiming:
        if not may_spread(manifests, pods):
            continue
        preferred = any(term["topologyKey"].text in PARTITION_KEYS for term in preferred_terms(pods))
        cause = "pod affinity is only preferred, and does not keep" if preferred else "nothing keeps"
        nodes = needs_nodes(pods) or 0
        if nodes > PARTITION_NODES:
            message = f"{pods} need {nodes} nodes, and {_PARTITION}: they run in several"
            yield Problem(pods.object, pods.spec, message, _SEVERAL)
        else:
            step = _NODE_SELECTOR if pods.template.pods is PER_NODE else _AFFINITY
            yield Problem(pods.object, pods.spec, f"{cause} {pods} in one NVLink partition", step)


@rule(
    "IMEX141",
    Severity.WARNING,
    "Pod affinity on another topology key than the NVLink partition",
    why="""Nodes of a zone, or of a rack by its place, are not necessarily connected by NVLink, and
    kubernetes.io/hostname puts all pods on one node. The label nvidia.com/gpu.clique names the partition of a
    node.""",
)
def other_topology_key(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.claiming:
        terms = required_terms(pods)
        if not terms or not manifests.several(pods) or held_together(pods):
            continue
        key = terms[0]["topologyKey"]
        if key.text.startswith(DOMAIN_LABEL):
            continue  # IMEX144
        if key.text == HOSTNAME:
            message = f"pod affinity on {HOSTNAME} puts {pods} on one node"
        elif nearest(key.text, [CLIQUE_LABEL], 0.8):
            message = f"{key.text} is not the label of NVLink partitions"
        else:
            message = (
                f"pod affinity on {key.text or 'no topology key'} does not keep {pods} in one NVLink partition"
            )
        yield Problem(pods.object, key, message, f"use topologyKey {CLIQUE_LABEL}")


@rule(
    "IMEX142",
    Severity.WARNING,
    "Pod affinity does not select the workload's own pods",
    why="""Required pod affinity places a pod where other pods that match its labelSelector run. If the selector
    matches neither these pods nor others, none of them is ever scheduled. A term without labelSelector matches no
    pod.""",
)
def selector_without_pods(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.claiming:
        for term in required_terms(pods):
            if term["topologyKey"].text not in PARTITION_KEYS:
                continue
            if not any(selects(term, other.labels) for other in (pods, *manifests.pods)):
                message = f"the labelSelector of the pod affinity matches neither {pods} nor others in the files"
                step = "give the pod template the labels that it selects"
                yield Problem(pods.object, term["labelSelector"], message, step)


@rule(
    "IMEX143",
    Severity.WARNING,
    "The workload needs more nodes than a partition has",
    why="""An NVL72 partition has at most 18 nodes of 4 GPUs. If affinity or a node selector requires one
    partition, the pods that do not fit are never scheduled, and the others wait for them. Larger workloads use
    several partitions: one ComputeDomain may span them, with a channel in each.""",
)
def larger_than_partition(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.claiming:
        nodes = needs_nodes(pods) or 0
        if nodes > PARTITION_NODES and held_by_affinity(pods):
            message = f"{_PARTITION}, too few for {pods}: {nodes} are needed"
            step = "use fewer pods, or one workload per partition"
            yield Problem(pods.object, pods.template.counted, message, step)


@rule(
    "IMEX144",
    Severity.WARNING,
    "Pods are placed by a node label that only NVIDIA's driver sets",
    why="""NVIDIA's DRA driver labels the nodes of a ComputeDomain with resource.nvidia.com/computeDomain.
    imex-dra does not: a node can serve many ComputeDomains. Pods that require the label are never scheduled.""",
)
def label_of_nvidias_driver(manifests: Manifests) -> Iterator[Problem]:
    step = f"remove it; {CLIQUE_LABEL} names the NVLink partition of a node"
    for pods in manifests.pods:
        for requirement in node_requirements(pods):
            if requirement.label.startswith(DOMAIN_LABEL):
                message = f"imex-dra does not set the node label {requirement.label}, which is required for {pods}"
                yield Problem(pods.object, requirement.key, message, step)
        for term in required_terms(pods):
            key = term["topologyKey"]
            if key.text.startswith(DOMAIN_LABEL):
                message = f"pod affinity uses the node label {key.text}, which imex-dra does not set"
                yield Problem(pods.object, key, message, step)


@rule(
    "IMEX145",
    Severity.WARNING,
    "A pod in a PodGroup claims from a template",
    why="""Kubernetes creates no claim from a template for a pod that belongs to a PodGroup, unless the feature
    gate DRAWorkloadResourceClaims is on, which it is not by default (up to Kubernetes 1.37). The pod stays
    Pending.""",
)
def pod_group(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.claiming:
        group = _pod_group(pods)
        claims = [claim for claim in manifests.channel_claims(pods) if claim.template.text]
        if group and claims:
            message = f"claim {claims[0].name} may not be created for {pods}, because of the PodGroup"
            step = "ask an administrator whether DRAWorkloadResourceClaims is on, or remove the PodGroup"
            yield Problem(pods.object, claims[0].value, message, step)


def _pod_group(pods: Pods) -> bool:
    return pods.spec.at("schedulingGroup.podGroupName").filled or pods.spec["workloadRef"].filled


RULES = (
    partition_not_required,
    other_topology_key,
    selector_without_pods,
    larger_than_partition,
    label_of_nvidias_driver,
    pod_group,
)
