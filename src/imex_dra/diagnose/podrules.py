"""Rules: are the pods with a channel scheduled, and are their claims prepared?

What follows from a node that cannot serve claims is not repeated here: `noderules` names the node.
"""

import re
from collections.abc import Iterator

from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.api.reasons import listed
from imex_dra.api.views import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceClaim
from imex_dra.diagnose.cluster import Cluster, domain_uids, event_text, name_of
from imex_dra.diagnose.noderules import CHECK_NODE_PROGRAM, obstacle
from imex_dra.diagnose.pods import ClusterPod, Owner
from imex_dra.diagnose.rule import Link, Problem, about_pod, rule
from imex_dra.diagnose.scheduling import NO_PODS, PartitionFit, fits, lack
from imex_dra.diagnose.sentences import cause_and_step
from imex_dra.lint.findings import Severity
from imex_dra.lint.pods import Claim

_PREPARE_FAILED = "FailedPrepareDynamicResources"
_KUBELET = re.compile(
    r"Failed to prepare dynamic resources: (prepare dynamic resources: )?(.* ResourceClaim \S+: )?"
)
"""What the kubelet writes before the driver's sentence."""
_NO_ANSWER = ("rpc error: code = Unavailable", "rpc error: code = DeadlineExceeded", "is not registered")
"""In what the kubelet says of a driver that has just ended, hangs, or never ran."""
_INJECTION, _UNRESOLVABLE = "CDI device injection failed: ", "unresolvable CDI devices"
"""In what a container runtime says."""


def _claims(cluster: Cluster) -> Iterator[tuple[ClusterPod, Claim, ResourceClaim]]:
    """Claims of channels that exist, with their pods."""
    for pod in cluster.claiming:
        for claim in cluster.channel_claims(pod):
            if made := cluster.claim_of(pod, claim):
                yield pod, claim, made


@rule(
    "IMEX401",
    Severity.ERROR,
    Link.CLAIM,
    "A pod with a channel cannot be scheduled",
    why="""No node has everything that the pod needs: a free channel device, GPUs, no taint that it does not
    tolerate, and the place that its affinity asks for. The finding says per NVLink partition how many nodes
    fit, and what the others lack; the evidence is what the scheduler says about the whole cluster.""",
    finds="""no node fits: r0: 0 of 2 nodes fit; 2 with all 1 channel devices in use; r1: 0 of 2 nodes fit; 2
    with all 1 channel devices in use""",
)
def unschedulable(cluster: Cluster) -> Iterator[Problem]:
    for pod in cluster.claiming:
        said = pod.unschedulable
        if pod.node or pod.gates or not said or _too_large(cluster, pod) or _without_claim(cluster, pod):
            continue
        if not cluster.has(NODES.plural, RESOURCE_SLICES.plural):
            yield about_pod(pod, "the scheduler finds no node", "see what it says", said)
            continue
        partitions = fits(cluster, pod)
        any_fits = any(fit.fit for fit in partitions)
        head = "the scheduler finds no node, although some seem to fit" if any_fits else "no node fits"
        message = f"{head}: {'; '.join(map(str, partitions)) or 'the cluster has no NVLink node'}"
        yield about_pod(pod, message, _where_to(cluster, pod, partitions), said)


def _where_to(cluster: Cluster, pod: ClusterPod, partitions: list[PartitionFit]) -> str:
    lacking = {cause for fit in partitions for cause in fit.lacking}
    made = [cluster.claim_of(pod, claim) for claim in cluster.channel_claims(pod)]
    if NO_PODS in lacking:
        return "give the pod the labels that its pod affinity selects (IMEX142)"
    if any(claim and claim.nodes for claim in made):
        return "pods on several nodes each need a claim of their own: use resourceClaimTemplateName (IMEX109)"
    workload = cluster.workload(pod)
    ending = [
        one.name for one in cluster.claiming if one.deleting and one.node and cluster.workload(one) == workload
    ]
    if ending:
        return f"wait until the pods that are being deleted have ended: {listed(ending)}"
    return "free nodes, or change what the pod requires"


def _without_claim(cluster: Cluster, pod: ClusterPod) -> bool:
    """Another rule says why there is no claim; the scheduler only repeats that there is none."""
    return cluster.has(RESOURCE_CLAIMS.plural, namespace=pod.namespace) and any(
        cluster.claim_of(pod, claim) is None for claim in cluster.channel_claims(pod)
    )


def _too_large(cluster: Cluster, pod: ClusterPod) -> bool:
    return any(pod.key in problem.pods for problem in too_large.problems(cluster))


@rule(
    "IMEX402",
    Severity.ERROR,
    Link.CLAIM,
    "A job needs more nodes than any partition has free",
    why="""The pods of the job must be in one NVLink partition, because of their affinity, and on different
    nodes, because of their GPUs or anti-affinity. No partition has so many free nodes, so that some pods wait,
    perhaps without end, while the others keep their nodes.""",
    finds="""MPIJob team/train needs 3 nodes of one partition, and none has as many: r0 has 2 (1 of its pods run
    there), r1 has 2""",
)
def too_large(cluster: Cluster) -> Iterator[Problem]:
    if not cluster.has(NODES.plural, RESOURCE_SLICES.plural):
        return
    jobs: dict[tuple[Owner, str], list[ClusterPod]] = {}
    for pod in cluster.claiming:
        if _one_per_node(pod) and _in_one_partition(pod):
            jobs.setdefault((cluster.workload(pod), pod.group), []).append(pod)
    for (job, _), existing in jobs.items():
        pods = [pod for pod in existing if not pod.deleting and not pod.gates]
        waiting = [pod for pod in pods if not pod.node]
        if not waiting or len(pods) < 2:
            continue
        # The node of a pod that is deleted is free for the job soon.
        usable = {
            partition: [node for node in nodes if _usable(cluster, waiting[0], existing, node)]
            for partition, nodes in cluster.fabric_nodes.items()
        }
        if all(len(nodes) < len(pods) for nodes in usable.values()):
            message = f"{job} needs {len(pods)} nodes of one partition, and none has as many: "
            message += listed([_free(cluster, partition, nodes, pods) for partition, nodes in usable.items()])
            step = "use fewer pods, or wait until other jobs have ended: imex status shows free nodes"
            keys = frozenset(pod.key for pod in waiting)
            yield Problem("Pod", waiting[0].key, message, step, waiting[0].unschedulable, frozenset(), keys)


def _free(cluster: Cluster, partition: str, nodes: list[str], pods: list[ClusterPod]) -> str:
    here = sum(pod.node in cluster.fabric_nodes[partition] for pod in pods if pod.node)
    return f"{cluster.rack(partition)} has {len(nodes)}" + (f" ({here} of its pods run there)" if here else "")


def _usable(cluster: Cluster, pod: ClusterPod, pods: list[ClusterPod], node: str) -> bool:
    """Free for the job, or used by it."""
    cause = lack(cluster, pod, node)
    # Where the pods of the job are now says nothing about another partition, in which they could all be. And that
    # an affinity selects no pod at all is no lack of nodes.
    elsewhere = cause.startswith("outside of") or cause == NO_PODS
    return not cause or elsewhere or any(other.node == node for other in pods)


def _in_one_partition(pod: ClusterPod) -> bool:
    terms = pod.spec.at("affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution").elements()
    return any(term["topologyKey"].text == CLIQUE_LABEL for term in terms)


def _one_per_node(pod: ClusterPod) -> bool:
    path = "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    apart = any(term["topologyKey"].text == "kubernetes.io/hostname" for term in pod.spec.at(path).elements())
    return apart or pod.pods.gpus >= 4


@rule(
    "IMEX403",
    Severity.ERROR,
    Link.CLAIM,
    "The claim of a pod is not reserved for it",
    why="""A claim that works is `allocated,reserved`. The scheduler allocates the claims of a pod, and reserves
    them for it, before it puts the pod on a node. Here the pod is on a node, and its claim is not reserved for
    it, so that the kubelet does not start the pod. Usually somebody set spec.nodeName of the pod, and the
    scheduler has never seen it; nodeSelector with kubernetes.io/hostname selects a node, too. Or the claim is
    shared, and 256 pods use it already.""",
    finds="claim team/worker-0-imex is allocated, but not reserved for the pod",
)
def not_reserved(cluster: Cluster) -> Iterator[Problem]:
    for pod, _, claim in _claims(cluster):
        if not pod.node or pod.phase != "Pending" or pod.name in claim.pods:
            continue
        said = _events(cluster, pod, _PREPARE_FAILED)
        evidence = said[-1] if said else ""
        if claim.status.allocation:
            message = f"claim {name_of(claim)} is allocated, but not reserved for the pod"
            step = "delete the pod, and create it without spec.nodeName"
        else:
            message = f"claim {name_of(claim)} is not allocated, although the pod is on {pod.node}"
            step = "create the pod without spec.nodeName: only the scheduler allocates claims"
        yield about_pod(pod, message, step, evidence, pod.node, *claim.nodes)


@rule(
    "IMEX404",
    Severity.ERROR,
    Link.CHANNEL,
    "A claim cannot be prepared",
    why="""The pod is on a node, and imex node there could not prepare its claim. The event of the pod has the
    cause in one sentence. The kubelet tries again after 60 to 90 seconds.""",
    finds="claim team/worker-0-imex is not prepared on r0-n00: channel 7 is still held on node r0-n00",
)
def not_prepared(cluster: Cluster) -> Iterator[Problem]:
    for pod, _, claim in _claims(cluster):
        node = pod.node
        if pod.phase != "Pending" or not node or obstacle(cluster, node) not in ("", "IMEX308"):
            continue
        if claim.metadata.uid in _prepared(cluster, node) or _domain_gone(cluster, claim):
            continue
        # Without a reservation the kubelet does not ask the driver.
        if pod.name in claim.pods and (failed := _events(cluster, pod, _PREPARE_FAILED)):
            said = failed[-1]
            head = f"claim {name_of(claim)} is not prepared on {node}"
            if any(sign in said for sign in _NO_ANSWER):
                message = f"{head}: imex node does not answer the kubelet"
                yield about_pod(pod, message, CHECK_NODE_PROGRAM, said, node)
            else:
                cause, step = cause_and_step(_KUBELET.sub("", said), "see the event of the pod")
                yield about_pod(pod, f"{head}: {cause}", step, f"Event {_PREPARE_FAILED} of the pod", node)


def _events(cluster: Cluster, pod: ClusterPod, reason: str) -> list[str]:
    """What events of the pod with this reason say, the newest last."""
    found = cluster.events("Pod", pod.namespace, pod.name, pod.uid)
    return [event_text(event) for event in found if event.get("reason") == reason]


def _prepared(cluster: Cluster, node: str) -> tuple[str, ...]:
    report = cluster.nvlink_nodes.get(node)
    return report.status.prepared_claims if report else ()


@rule(
    "IMEX405",
    Severity.ERROR,
    Link.DOMAIN,
    "The ComputeDomain of a claim does not exist any more",
    why="""A claim has the UID of its ComputeDomain. If that is deleted, or deleted and created again, the
    claims of older pods are worthless: a channel belongs to one ComputeDomain, not to its name. A pod that runs
    may still have the old channel, but shares memory with no pod of the current ComputeDomain.""",
    finds="""claim team/worker-0-imex names ComputeDomain uid-gone, but namespace team has no ComputeDomain with
    this UID: it was deleted or recreated""",
)
def domain_gone(cluster: Cluster) -> Iterator[Problem]:
    for pod, _, claim in _claims(cluster):
        if (uid := _domain_gone(cluster, claim)) and not pod.deleting:
            message = (
                f"claim {name_of(claim)} names ComputeDomain {uid}, but namespace {pod.namespace} has no"
                " ComputeDomain with this UID: it was deleted or recreated"
            )
            yield about_pod(pod, message, "delete the pod, so that it gets a claim from the current template")


def _domain_gone(cluster: Cluster, claim: ResourceClaim) -> str:
    known = cluster.has("computedomains", namespace=claim.metadata.namespace)
    return next((uid for uid in domain_uids(claim) if known and uid not in cluster.domains_by_uid), "")


@rule(
    "IMEX415",
    Severity.ERROR,
    Link.CHANNEL,
    "The container runtime does not find the device of a claim",
    why="""imex node writes a CDI spec for each claim, and the kubelet names it to the container runtime. Here the
    runtime has CDI, but has not found the spec, so that it does not create the container: it reads other
    directories than the one that imex node writes to (kubelet.cdiDirectory of the chart). A runtime in which CDI
    is turned off says nothing, and creates the container without the channel (IMEX213).""",
    finds="""container main is not created on r0-n00: CDI device injection failed: unresolvable CDI devices
    imex-dra.io/channel=uid-worker-0-imex""",
)
def device_not_found(cluster: Cluster) -> Iterator[Problem]:
    for pod in cluster.claiming:
        for container, _, said in pod.waiting:
            if _UNRESOLVABLE in said:
                _, separator, cause = said.partition(_INJECTION)
                message = f"container {container} is not created on {pod.node}: {separator}{cause or said}"
                step = "let cdi_spec_dirs of the container runtime have the directory of the CDI specs"
                yield about_pod(pod, message, step, f"state of container {container}", pod.node)


RULES = (
    unschedulable,
    too_large,
    not_reserved,
    not_prepared,
    domain_gone,
    device_not_found,
)
