"""What a ComputeDomain, its template and its nodes report: one function per reason. See `reasons`."""

from collections.abc import Sequence

from imex_dra.api.names import (
    ALL_CHANNELS_ALLOWED,
    ALL_CHANNELS_LABEL,
    CLIQUE_LABEL,
    RELEASE_ANNOTATION,
    RELEASE_NOW,
)
from imex_dra.api.reasons import Explanation, Reason, listed, not_reporting, unreachable

# ComputeDomains


def no_such_compute_domain(*, claim: str, uid: str, namespace: str) -> Explanation:
    return Explanation(
        Reason.NO_SUCH_COMPUTE_DOMAIN,
        f"claim {claim} names ComputeDomain {uid}, but namespace {namespace} has no ComputeDomain with this UID:"
        " it was deleted or recreated",
        "delete the pod, so that it gets a claim from the current template",
    )


def other_namespace(*, claim: str, domain: str, namespace: str) -> Explanation:
    return Explanation(
        Reason.OTHER_NAMESPACE,
        f"claim {claim} names ComputeDomain {domain}, which is in another namespace, and a channel can only be"
        " used in the namespace of its ComputeDomain",
        f"create a ComputeDomain in {namespace}",
    )


def compute_domain_deleting(*, domain: str) -> Explanation:
    return Explanation(
        Reason.COMPUTE_DOMAIN_DELETING,
        f"ComputeDomain {domain} is being deleted and accepts no new pods",
        "create it again, then delete the pod",
    )


def all_channels_refused(*, domain: str) -> Explanation:
    return Explanation(
        Reason.ALL_CHANNELS_REFUSED,
        f"ComputeDomain {domain} requests allocationMode All, which opens the memory of every workload in the"
        " partition",
        f"use Single, or ask an administrator to label the namespace {ALL_CHANNELS_LABEL}={ALL_CHANNELS_ALLOWED}",
    )


def accepted() -> Explanation:
    return Explanation(Reason.ACCEPTED, "the ComputeDomain is accepted")


def template_taken(*, template: str, domain: str) -> Explanation:
    return Explanation(
        Reason.TEMPLATE_TAKEN,
        f"ResourceClaimTemplate {template} exists and was not created for ComputeDomain {domain}",
        "rename one of them",
    )


def template_forged(*, template: str, domain: str) -> Explanation:
    return Explanation(
        Reason.TEMPLATE_FORGED,
        f"ResourceClaimTemplate {template} names ComputeDomain {domain} as its owner, but imex controller did not"
        " create it: its claims request something else",
        "delete the ResourceClaimTemplate; imex controller creates it again",
    )


def template_orphaned(*, template: str, domain: str) -> Explanation:
    return Explanation(
        Reason.TEMPLATE_ORPHANED,
        f"ResourceClaimTemplate {template} is labeled or configured for ComputeDomain {domain}, but does not name"
        " it as its owner: the owner reference was removed, or somebody else created the template",
        "delete the ResourceClaimTemplate; imex controller creates it again",
    )


def template_ready(*, template: str) -> Explanation:
    return Explanation(Reason.TEMPLATE_READY, f"pods can claim from ResourceClaimTemplate {template}")


def no_pods_yet(*, template: str) -> Explanation:
    return Explanation(
        Reason.NO_PODS_YET, f"no pod has claimed a channel yet: pods claim from ResourceClaimTemplate {template}"
    )


def pods_ended(*, ended_at: str) -> Explanation:
    return Explanation(
        Reason.PODS_ENDED, f"no pod holds a claim at the moment; the last claim ended at {ended_at}"
    )


def nodes_ready(*, count: int) -> Explanation:
    return Explanation(Reason.NODES_READY, f"{count} of {count} nodes with a claim are ready")


def nodes_not_ready(*, count: int, total: int, causes: Sequence[str]) -> Explanation:
    """`causes`: one sentence for each node, or one for several."""
    verb = "is" if count == 1 else "are"
    return Explanation(
        Reason.NODES_NOT_READY, f"{count} of {total} nodes with a claim {verb} not ready: {listed(causes, '; ')}"
    )


def recovered(*, state: str, since: str) -> Explanation:
    return Explanation(Reason.RECOVERED, f"{state} again; the ComputeDomain had been degraded since {since}")


def several_partitions(*, partitions: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.SEVERAL_PARTITIONS,
        f"pods with a claim run in {len(partitions)} NVLink partitions, and GPU memory can be shared only within"
        f" one: {listed(partitions)}",
        f"if this is not intended, add a pod affinity with topologyKey {CLIQUE_LABEL}",
    )


def one_partition() -> Explanation:
    return Explanation(Reason.ONE_PARTITION, "pods with a claim run in at most one NVLink partition")


def fewer_nodes(*, count: int, wanted: int) -> Explanation:
    cause = f"{count} of the {wanted} nodes that numNodes requires hold a claim"
    return Explanation(Reason.FEWER_NODES, cause)


def waiting_for_pods(*, pods: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.WAITING_FOR_PODS,
        f"deletion waits for pods that still hold a channel: {listed(pods)}",
        f"delete them, or set the annotation {RELEASE_ANNOTATION}={RELEASE_NOW} to delete the ComputeDomain now;"
        " running pods then keep the channel device until they end",
    )


def foreign_finalizers(*, finalizers: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.FOREIGN_FINALIZERS,
        f"imex-dra has released the ComputeDomain; deletion waits for finalizers of others: {listed(finalizers)}",
        "check the controllers that set them",
    )


def claims_waiting(*, pods: Sequence[str], causes: Sequence[str]) -> Explanation:
    """`causes`: what the controller knows about the nodes. The scheduler knows more, and says it on the pods."""
    count = len(pods)
    waiting = "1 claim waits for a node" if count == 1 else f"{count} claims wait for a node"
    return Explanation(
        Reason.CLAIMS_WAITING,
        f"{waiting} ({listed(pods)})" + (f": {listed(causes, '; ')}" if causes else ""),
        "kubectl describe pod shows what the scheduler says",
    )


def no_devices(*, causes: Sequence[str]) -> Explanation:
    cause = listed(causes, "; ") or "imex node has not reported on any node"
    return Explanation(Reason.NO_DEVICES, f"no node publishes devices: {cause}")


def node_full(*, node: str, claims: int, limit: int) -> Explanation:
    return Explanation(
        Reason.NODE_FULL,
        f"{node} is full ({claims} of {limit})",
        "the limit is the flag --max-claims of imex node",
    )


# Nodes of a ComputeDomain


def node_unreachable(*, node: str, since: str) -> Explanation:
    return Explanation(Reason.NODE_UNREACHABLE, f"{node} {unreachable(since)}")


def no_report(*, node: str, since: str) -> Explanation:
    return Explanation(Reason.NO_REPORT, f"{node} {not_reporting(since)}", "check that imex node runs on it")


def node_not_ready(*, node: str, state: str, cause: str) -> Explanation:
    explained = f": {cause}" if cause else ""
    return Explanation(Reason.NODE_NOT_READY, f"{node} is {state} in its NVLink partition{explained}")


def nodes_not_connected(*, node: str, others: Sequence[str]) -> Explanation:
    if len(others) == 1:
        first, second = sorted((node, *others))
        cause = f"{first} and {second} cannot reach each other"
    else:
        cause = f"{node} and {len(others)} other nodes cannot reach each other: {listed(others)}"
    return Explanation(Reason.NODES_NOT_CONNECTED, cause)


def claims_not_prepared(*, node: str, claims: Sequence[str]) -> Explanation:
    """`claims`: their pods, where known."""
    noun = "the claim" if len(claims) == 1 else f"{len(claims)} claims"
    return Explanation(Reason.CLAIMS_NOT_PREPARED, f"{node} has not prepared {noun} of {listed(claims)}")


def daemon_restarted(*, nodes: Sequence[str]) -> Explanation:
    daemons, their = ("IMEX daemon", "this node's") if len(nodes) == 1 else ("IMEX daemons", "these nodes'")
    verb = "was" if len(nodes) == 1 else "were"
    return Explanation(
        Reason.DAEMON_RESTARTED,
        f"the {daemons} of {listed(nodes)} {verb} restarted: imports of {their} GPU memory by other nodes have"
        " ended",
        "restart the job if it reports errors",
    )


def no_fabric(*, nodes: Sequence[str]) -> Explanation:
    have, their = ("has", "its") if len(nodes) == 1 else ("have", "their")
    return Explanation(Reason.NO_FABRIC, f"{listed(nodes)} {have} no NVLink fabric: {their} pods get no channel")
