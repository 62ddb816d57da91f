"""Rules: can each NVLink node serve claims, and can the nodes of a partition reach each other?

A node has one cause at a time: the first of the obstacles below. A node that is powered off also has an IMEX
daemon that does not answer, but only the first is a finding.
"""

from collections.abc import Iterator

from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.api.nvlinknode import NVLINK_NODES, READY, FabricState, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import (
    NODES_ADMITTED,
    NVLINK_PARTITIONS,
    MemberState,
)
from imex_dra.api.reasons import CHECK_CONTROLLER, Reason
from imex_dra.api.views import NODES, RESOURCE_SLICES
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.rule import Link, Problem, about_node, rule
from imex_dra.diagnose.sentences import cause_and_step
from imex_dra.diagnose.snapshot import Plain
from imex_dra.kube.conditions import find_condition
from imex_dra.lint.findings import Severity
from imex_dra.picture.snapshot import PRODUCT_LABEL, is_ready

CHECK_NODE_PROGRAM = "check that imex node runs there: kubectl -n imex-dra get pods -o wide"


def has_gpus(cluster: Cluster, node: str) -> bool:
    found = cluster.nodes.get(node)
    return found is not None and bool({CLIQUE_LABEL, PRODUCT_LABEL} & found.metadata.labels.keys())


def obstacle(cluster: Cluster, node: str) -> str:
    """Id of the rule that says why the node cannot serve claims; empty if none does."""
    if node in cluster.nodes and not is_ready(cluster.nodes[node]):
        return "IMEX301"
    report = cluster.nvlink_nodes.get(node)
    if report is None:
        known = cluster.has(NVLINK_NODES.plural, NODES.plural) and bool(cluster.nvlink_nodes)
        return "IMEX302" if known and has_gpus(cluster, node) else ""
    status = report.status
    if status.fabric.state is FabricState.NONE:
        return ""
    if status.fabric.state is FabricState.BROKEN:
        return "IMEX303"
    if status.fabric.state is FabricState.PENDING:
        return "IMEX304"
    partition, member = cluster.members.get(node, (None, None))
    if cluster.has(NVLINK_PARTITIONS.plural) and (partition is None or member is None):
        return "IMEX305"
    if status.imex_state is not ImexState.READY:
        return "IMEX306"
    if member is not None and member.state in (MemberState.UNKNOWN, MemberState.SUSPENDED):
        return "IMEX305"
    ready = find_condition(status.conditions, READY)
    if ready and ready.status == "False" and ready.reason == Reason.OTHER_DRIVER_PRESENT:
        return "IMEX203"  # of the cluster, not of each node
    if ready and ready.status == "False":
        return "IMEX307"
    if cluster.has(RESOURCE_SLICES.plural) and not cluster.devices.get(node):
        return "IMEX308"
    return ""


def _with_obstacle(cluster: Cluster, id: str) -> Iterator[str]:
    for node in dict.fromkeys((*cluster.nodes, *cluster.nvlink_nodes)):
        if _is_nvlink(cluster, node) and obstacle(cluster, node) == id:
            yield node


def _is_nvlink(cluster: Cluster, node: str) -> bool:
    report = cluster.nvlink_nodes.get(node)
    return has_gpus(cluster, node) or (report is not None and report.status.fabric.state is not FabricState.NONE)


def _reports_with(cluster: Cluster, id: str) -> Iterator[tuple[str, NVLinkNode, str, str]]:
    """Node, its report, and what its condition says: the cause, and the next step."""
    for node in _with_obstacle(cluster, id):
        report = cluster.nvlink_nodes[node]
        condition = find_condition(report.status.conditions, READY)
        message = condition.message if condition and condition.status == "False" else ""
        yield node, report, *cause_and_step(message, "")


@rule(
    "IMEX301",
    Severity.ERROR,
    Link.PARTITION,
    "An NVLink node is not Ready",
    why="""The kubelet of the node does not report, or says that it cannot run pods. Its pods are lost or will
    be evicted, and memory that other nodes imported from it may be gone. The other nodes of the partition go
    on.""",
    finds="Node r0-n01 is not Ready: Kubelet stopped posting node status.",
)
def node_not_ready(cluster: Cluster) -> Iterator[Problem]:
    for node in _with_obstacle(cluster, "IMEX301"):
        conditions = cluster.plain_nodes[node].get("status", {}).get("conditions") or ()
        ready: Plain = next((one for one in conditions if one.get("type") == "Ready"), {})
        message = f"Node {node} is not Ready" + (f": {ready['message']}" if ready.get("message") else "")
        step = f"repair it; if it will not come back, delete its Node object or run imex forget-node {node}"
        since = f"since {ready['lastTransitionTime']}" if ready.get("lastTransitionTime") else ""
        yield about_node(node, message, step, since)


@rule(
    "IMEX302",
    Severity.ERROR,
    Link.PARTITION,
    "A node with GPUs does not report",
    why="""imex node reports each node as an NVLinkNode. This node has the labels of a node with GPUs, and no
    report: imex node has never run there. It publishes no channel devices.""",
    finds="Node r0-n01 has GPUs, but no NVLinkNode: imex node has never run there",
)
def no_report(cluster: Cluster) -> Iterator[Problem]:
    for node in _with_obstacle(cluster, "IMEX302"):
        yield about_node(
            node, f"Node {node} has GPUs, but no NVLinkNode: imex node has never run there", CHECK_NODE_PROGRAM
        )


@rule(
    "IMEX303",
    Severity.ERROR,
    Link.FABRIC,
    "The NVLink fabric of a node is broken",
    why="""The GPUs of the node report that their NVLink fabric is unusable. The node withdraws its devices, so
    that no new pod with a channel is scheduled there. It has to be repaired.""",
    finds="r0-n01: the NVLink fabric is broken (GPU 2: not registered with the fabric)",
)
def fabric_broken(cluster: Cluster) -> Iterator[Problem]:
    for node, report, _, step in _reports_with(cluster, "IMEX303"):
        message = f"{node}: the NVLink fabric is broken ({report.status.fabric.reason or 'no reason given'})"
        yield about_node(node, message, step or "repair the node", _gpus(report))


def _gpus(report: NVLinkNode) -> str:
    """Those with the same state and reason together."""
    groups: dict[str, list[str]] = {}
    for gpu in report.status.gpus:
        if gpu.state not in (FabricState.OK, FabricState.NONE):
            what = f"{gpu.state}: {gpu.reason}" if gpu.reason else str(gpu.state)
            groups.setdefault(what, []).append(str(gpu.index))
    return "; ".join(
        f"GPU {numbers[0]} is {what}" if len(numbers) == 1 else f"GPUs {', '.join(numbers)} are {what}"
        for what, numbers in groups.items()
    )


@rule(
    "IMEX304",
    Severity.ERROR,
    Link.FABRIC,
    "The NVLink fabric of a node is not up",
    why="""The GPUs of the node have not registered with the fabric, or their driver does not answer. After a
    boot this lasts for minutes at most. Then check the GPU driver and the fabric manager.""",
    finds="r0-n01: the NVLink fabric is not up: registration is in progress",
)
def fabric_pending(cluster: Cluster) -> Iterator[Problem]:
    for node, report, _, step in _reports_with(cluster, "IMEX304"):
        message = f"{node}: the NVLink fabric is not up: {report.status.fabric.reason or 'no reason given'}"
        yield about_node(node, message, step or "check the GPU driver and the fabric manager", _gpus(report))


@rule(
    "IMEX305",
    Severity.ERROR,
    Link.PARTITION,
    "A node is not a member of its partition",
    why="""The controller has not admitted the node to the IMEX domain of its NVLink partition, or has
    suspended it because no other member could reach it. Its IMEX daemon is then not connected to the others, and
    it gets no channels.""",
    finds="r0-n01 is not a member of NVLink partition aaaa.1",
)
def not_a_member(cluster: Cluster) -> Iterator[Problem]:
    for node in _with_obstacle(cluster, "IMEX305"):
        name = cluster.partition_of(node)
        partition, member = cluster.members.get(node, (cluster.partitions.get(name), None))
        condition = find_condition(partition.status.conditions, NODES_ADMITTED) if partition else None
        evidence = condition.message if condition and condition.status == "False" else ""
        if member is None:
            message = f"{node} is not a member of NVLink partition {name}"
        else:
            since = f" since {member.since}" if member.since else ""
            message = f"{node} is {member.state} in NVLink partition {name}{since}"
        yield about_node(node, message, CHECK_NODE_PROGRAM if member else CHECK_CONTROLLER, evidence)


@rule(
    "IMEX306",
    Severity.ERROR,
    Link.DAEMON,
    "The IMEX daemon of a node is not READY",
    why="""nvidia-imex of the node does not run, or waits for something. Pods on the node cannot import memory,
    and a claim is prepared only when the daemon is READY. The condition Ready of the NVLinkNode has the cause.""",
    finds="""the IMEX daemon of node r0-n01 is UNAVAILABLE, not READY: the supervisor of nvidia-imex does not run
    on this node: look at the pod of the IMEX daemon there (kubectl describe), which may wait for Secret
    imex-daemon-tls or its image, or be gone while the GPU driver is replaced""",
)
def daemon_not_ready(cluster: Cluster) -> Iterator[Problem]:
    for node, report, cause, step in _reports_with(cluster, "IMEX306"):
        message = cause or f"the IMEX daemon of node {node} is {report.status.imex_state}, not READY"
        yield about_node(node, message, step or "check the log of nvidia-imex on the node if it does not recover")


@rule(
    "IMEX307",
    Severity.ERROR,
    Link.DAEMON,
    "A node cannot serve claims",
    why="""The node says so itself, in the condition Ready of its NVLinkNode, although its fabric is up and its
    IMEX daemon is READY: its disk is full, its index changes, or the like.""",
    finds="node r0-n01 cannot write what it has prepared: No space left on device",
)
def cannot_serve(cluster: Cluster) -> Iterator[Problem]:
    for node, _, cause, step in _reports_with(cluster, "IMEX307"):
        yield about_node(node, cause, step or f"see kubectl describe nvlinknode {node}")


@rule(
    "IMEX308",
    Severity.WARNING,
    Link.PARTITION,
    "A node that is ready publishes no channel devices",
    why="""Its fabric is up and its IMEX daemon is READY, but it has no ResourceSlice, so that no new pod with
    a channel is scheduled there. That is normal for some seconds after a start, and for up to 30 s while the
    node cannot reach every other member. If it lasts, imex node or the kubelet of the node does not run.""",
    finds="r0-n01 is ready, but publishes no channel devices: no pod with a channel can be scheduled there",
)
def no_devices(cluster: Cluster) -> Iterator[Problem]:
    for node in _with_obstacle(cluster, "IMEX308"):
        message = (
            f"{node} is ready, but publishes no channel devices: no pod with a channel can be scheduled there"
        )
        yield about_node(node, message, CHECK_NODE_PROGRAM)


RULES = (
    node_not_ready,
    no_report,
    fabric_broken,
    fabric_pending,
    not_a_member,
    daemon_not_ready,
    cannot_serve,
    no_devices,
)
