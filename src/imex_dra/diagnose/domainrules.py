"""Rules: is a ComputeDomain usable, and does it have one channel for all its pods?

What follows from a node that cannot serve claims is not repeated here: `noderules` names the node.
"""

from collections.abc import Iterator

from imex_dra.api.computedomain import ACCEPTED, CHANNEL_ASSIGNED, DELETING, READY, TEMPLATE_READY, ComputeDomain
from imex_dra.api.limits import MAX_CHANNELS
from imex_dra.api.meta import Key, key_of
from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS
from imex_dra.api.reasons import CHECK_CONTROLLER, Reason, listed
from imex_dra.api.views import RESOURCE_CLAIM_TEMPLATES
from imex_dra.diagnose.cluster import Cluster, name_of
from imex_dra.diagnose.noderules import obstacle
from imex_dra.diagnose.partitionrules import not_connected
from imex_dra.diagnose.podrules import not_prepared
from imex_dra.diagnose.rule import Link, Problem, about, rule
from imex_dra.diagnose.sentences import cause_and_step
from imex_dra.kube.conditions import find_condition
from imex_dra.lint.findings import Severity


def _with_condition(cluster: Cluster, type: str, status: str) -> Iterator[tuple[ComputeDomain, str, str]]:
    for domain in cluster.domains.values():
        condition = find_condition(domain.status.conditions, type)
        if condition and condition.status == status:
            yield domain, condition.reason, condition.message


@rule(
    "IMEX406",
    Severity.ERROR,
    Link.DOMAIN,
    "A ComputeDomain is refused",
    why="""allocationMode All opens the memory of every workload in the partition. It is refused unless the
    namespace has the label imex-dra.io/all-channels: allowed. Pods of the ComputeDomain do not start.""",
    finds="""ComputeDomain team/train requests allocationMode All, which opens the memory of every workload in
    the partition""",
)
def refused(cluster: Cluster) -> Iterator[Problem]:
    for domain, _, text in _with_condition(cluster, ACCEPTED, "False"):
        yield about(domain, "ComputeDomain", *cause_and_step(text, "use Single"))


@rule(
    "IMEX407",
    Severity.ERROR,
    Link.TEMPLATE,
    "The template of a ComputeDomain is not usable",
    why="""Another ResourceClaimTemplate has the name that the ComputeDomain asks for, or somebody changed the
    template of the controller. Pods that claim from it get something else than a channel of this
    ComputeDomain.""",
    finds="ResourceClaimTemplate imex-channel exists and was not created for ComputeDomain team/train",
)
def template_unusable(cluster: Cluster) -> Iterator[Problem]:
    for domain, _, text in _with_condition(cluster, TEMPLATE_READY, "False"):
        # The template of one that is deleted is gone on purpose.
        if not domain.metadata.deletion_timestamp:
            yield about(domain, "ComputeDomain", *cause_and_step(text, "rename one of them"))
    for domain in cluster.domains.values():
        key = Key(domain.metadata.namespace, domain.template_name)
        written = find_condition(domain.status.conditions, TEMPLATE_READY)
        gone = (
            cluster.has(RESOURCE_CLAIM_TEMPLATES.plural, namespace=key.namespace) and key not in cluster.templates
        )
        if gone and not (written and written.status == "False") and not domain.metadata.deletion_timestamp:
            message = f"ResourceClaimTemplate {key.name} of ComputeDomain {name_of(domain)} does not exist"
            yield about(domain, "ComputeDomain", message, CHECK_CONTROLLER)


@rule(
    "IMEX408",
    Severity.ERROR,
    Link.CHANNEL,
    "A ComputeDomain has no channel in a partition of its pods",
    why="""The controller assigns a channel when the first claim is allocated in a partition. Here it has not:
    there is none left, the namespace has as many as it may have, the partition recovers, or the controller does
    not run. The pods wait.""",
    finds="NVLink partition aaaa.1 has no free channel: all 2047 are assigned or not yet reusable",
)
def no_channel(cluster: Cluster) -> Iterator[Problem]:
    if not cluster.has(NVLINK_PARTITIONS.plural):
        return
    for domain in cluster.domains.values():
        refusal = find_condition(domain.status.conditions, ACCEPTED)
        if refusal and refusal.status == "False":
            continue
        nodes = _nodes_of(cluster, domain)
        without = sorted(
            node
            for node in nodes
            if node in cluster.members and cluster.channel(cluster.partition_of(node), domain) is None
        )
        if without:
            condition = find_condition(domain.status.conditions, CHANNEL_ASSIGNED)
            said = condition.message if condition and condition.status == "False" else ""
            partition = cluster.partition_of(without[0])
            default = f"ComputeDomain {name_of(domain)} has no channel in NVLink partition {partition} yet"
            cause, step = cause_and_step(said or default, CHECK_CONTROLLER)
            yield about(domain, "ComputeDomain", cause, step, "", *without)


def _nodes_of(cluster: Cluster, domain: ComputeDomain) -> set[str]:
    """Where its claims are. One in another namespace is none of it, and its pod has a finding of its own."""
    claims = [claim for claim in cluster.claims.values() if domain.metadata.uid in claim.domain_uids]
    own = [claim for claim in claims if claim.metadata.namespace == domain.metadata.namespace]
    return {node for claim in own for node in claim.nodes}


@rule(
    "IMEX409",
    Severity.ERROR,
    Link.DOMAIN,
    "A ComputeDomain is not Ready",
    why="""Pods hold claims, and not all claims are prepared on nodes that are ready and connected. The
    condition Ready names the nodes and the cause. The rule is silent if another finding explains it.""",
    finds="1 of 2 nodes with a claim is not ready: r0-n01 has not prepared the claim of worker-1",
)
def domain_not_ready(cluster: Cluster) -> Iterator[Problem]:
    for domain, reason, text in _with_condition(cluster, READY, "False"):
        if reason != Reason.NODES_NOT_READY or domain.metadata.deletion_timestamp:
            continue
        bad = [node.name for node in domain.status.nodes if node.status != "Ready"]
        if not (bad and all(_is_explained(cluster, domain, node) for node in bad)):
            step = "see the nodes that it names with imex explain node"
            yield about(domain, "ComputeDomain", text, step, "", *bad)


def _is_explained(cluster: Cluster, domain: ComputeDomain, node: str) -> bool:
    """By a finding on the node, on the channel, or on a pod there."""
    return (
        bool(obstacle(cluster, node))
        or any(node in problem.nodes for problem in not_connected.problems(cluster))
        or any(
            node in problem.nodes for other in (no_channel, not_prepared) for problem in other.problems(cluster)
        )
        or any(problem.key == key_of(domain) for problem in refused.problems(cluster))
    )


@rule(
    "IMEX410",
    Severity.WARNING,
    Link.PARTITION,
    "The pods of a ComputeDomain are in several partitions",
    why="""GPU memory can be shared only within one NVLink partition. In each partition the ComputeDomain has
    another channel, and between them NCCL uses the network. Usually the pods lack the affinity that keeps them
    together.""",
    finds="pods of ComputeDomain team/train run in 2 NVLink partitions: r0 (worker-0), r1 (worker-1)",
)
def several_partitions(cluster: Cluster) -> Iterator[Problem]:
    for uid, pods in cluster.pods_of_domain.items():
        by_partition: dict[str, list[str]] = {}
        for pod in pods:
            if pod.node and (partition := cluster.partition_of(pod.node)):
                by_partition.setdefault(partition, []).append(pod.name)
        if len(by_partition) > 1:
            domain = cluster.domains_by_uid[uid]
            places = [f"{cluster.rack(name)} ({listed(names)})" for name, names in sorted(by_partition.items())]
            message = (
                f"pods of ComputeDomain {name_of(domain)} run in {len(places)} NVLink partitions: {listed(places)}"
            )
            step = f"if this is not intended, add required pod affinity with topologyKey {CLIQUE_LABEL} (IMEX140)"
            yield about(domain, "ComputeDomain", message, step)


@rule(
    "IMEX411",
    Severity.WARNING,
    Link.DOMAIN,
    "Several workloads share a ComputeDomain",
    why="""All pods of a ComputeDomain have the same channel, and can map each other's GPU memory. Two
    workloads in one are not isolated from each other.""",
    finds="ComputeDomain team/train is used by 2 workloads: Job team/one, Job team/two",
)
def several_workloads(cluster: Cluster) -> Iterator[Problem]:
    for uid, pods in cluster.pods_of_domain.items():
        owners = sorted({cluster.workload(pod) for pod in pods})
        # Pods that a user created one by one may be one workload.
        workloads = [str(owner) for owner in owners if owner.kind != "Pod"]
        if len(workloads) > 1:
            domain = cluster.domains_by_uid[uid]
            message = f"ComputeDomain {name_of(domain)} is used by {len(workloads)} workloads: {listed(workloads)}"
            step = "create a ComputeDomain for each workload, unless they share memory on purpose (IMEX122)"
            yield about(domain, "ComputeDomain", message, step)


@rule(
    "IMEX412",
    Severity.WARNING,
    Link.DOMAIN,
    "The deletion of a ComputeDomain waits",
    why="""A ComputeDomain that is deleted waits until no pod holds a claim of it, because its channel may be
    open in their processes. Its template is gone already: no new pod can claim.""",
    finds="deletion waits for pods that still hold a channel: worker-0",
)
def deletion_waits(cluster: Cluster) -> Iterator[Problem]:
    for domain, _, text in _with_condition(cluster, DELETING, "True"):
        cause, _, step = text.partition("; ")
        yield about(domain, "ComputeDomain", cause, step or "delete its pods")


@rule(
    "IMEX413",
    Severity.WARNING,
    Link.CHANNEL,
    "Pods run on nodes without an NVLink fabric",
    why="""These nodes are proven to have no NVLink to other nodes. Pods with a claim start there, without a
    channel, and NCCL uses the network. Select nodes by the label nvidia.com/gpu.clique if that is not
    intended.""",
    finds="x-n00 has no NVLink fabric: its pods get no channel",
)
def no_fabric(cluster: Cluster) -> Iterator[Problem]:
    for domain in cluster.domains.values():
        nodes = [node.name for node in domain.status.nodes if node.reason == Reason.NO_FABRIC]
        if nodes:
            have, their = ("has", "its") if len(nodes) == 1 else ("have", "their")
            message = f"{listed(nodes)} {have} no NVLink fabric: {their} pods get no channel"
            step = f"require the node label {CLIQUE_LABEL}, if the pods must share memory"
            yield about(domain, "ComputeDomain", message, step, "", *nodes)


@rule(
    "IMEX414",
    Severity.ERROR,
    Link.CHANNEL,
    "A node holds another channel than its ComputeDomain has",
    why="""All nodes of a ComputeDomain in one partition must have the same channel, which is the one that the
    NVLinkPartition assigns. A node reports what its processes may have open. If the two differ, pods cannot
    share memory, or share it with others. This should not happen: please report it.""",
    finds="""r0-n01 holds channel 9 for ComputeDomain team/train, but NVLink partition aaaa.1 assigns channel 7""",
)
def other_channel(cluster: Cluster) -> Iterator[Problem]:
    for node, report in cluster.nvlink_nodes.items():
        for held in report.status.held_channels:
            domain = cluster.domains_by_uid.get(held.compute_domain)
            assigned = cluster.channel(held.partition, domain) if domain else None
            if domain and assigned is not None and held.channel not in _may_hold(cluster, held.partition, domain):
                message = (
                    f"{node} holds channel {held.channel} for ComputeDomain {name_of(domain)}, but NVLink"
                    f" partition {held.partition} assigns channel {assigned}"
                )
                yield about(domain, "ComputeDomain", message, "delete the pods on the node", "", node)


def _may_hold(cluster: Cluster, partition: str, domain: ComputeDomain) -> set[int]:
    """Its channel, and those that were released and are not yet confirmed. With allocationMode All: all."""
    entries = cluster.partitions[partition].status.channels
    own = [entry for entry in entries if entry.compute_domain.uid == domain.metadata.uid]
    return set(range(MAX_CHANNELS)) if any(e.all_channels for e in own) else {entry.channel for entry in own}


RULES = (
    refused,
    template_unusable,
    no_channel,
    domain_not_ready,
    several_partitions,
    several_workloads,
    deletion_waits,
    no_fabric,
    other_channel,
)
