"""Rules: what concerns the nodes of a partition together, and the channels on a node."""

from collections.abc import Iterator

from imex_dra.api.nvlinknode import IsolationState
from imex_dra.api.nvlinkpartition import (
    CHANNEL_SKEW,
    CHANNELS_REUSABLE,
    CLIQUE_LABELS,
    NOT_CONNECTED,
    VERSION_SKEW,
    NVLinkPartition,
)
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.noderules import obstacle
from imex_dra.diagnose.rule import Link, Problem, about, about_node, rule
from imex_dra.diagnose.sentences import cause_and_step
from imex_dra.kube.conditions import find_condition
from imex_dra.lint.findings import Severity


def _partitions_with(
    cluster: Cluster, type: str, status: str
) -> Iterator[tuple[NVLinkPartition, str, str, tuple[str, ...]]]:
    """Partition, the cause and next step that its condition names, and its members."""
    for partition in cluster.partitions.values():
        condition = find_condition(partition.status.conditions, type)
        if condition and condition.status == status:
            members = tuple(member.node for member in partition.status.members)
            yield partition, *cause_and_step(condition.message, ""), members


@rule(
    "IMEX310",
    Severity.ERROR,
    Link.DAEMON,
    "IMEX daemons of a partition cannot reach each other",
    why="""Both nodes are alive, but the connection between their IMEX daemons fails. Their pods cannot share
    memory. The network between the nodes drops traffic to the ports of nvidia-imex (50000 and 50005), or one
    daemon hangs.""",
    finds="r0-n00 and r0-n01 cannot reach each other",
)
def not_connected(cluster: Cluster) -> Iterator[Problem]:
    for partition, cause, step, _ in _partitions_with(cluster, NOT_CONNECTED, "True"):
        pairs = {
            (node, other)
            for node in cluster.fabric_nodes.get(partition.metadata.name, ())
            if (report := cluster.nvlink_nodes.get(node)) and not obstacle(cluster, node)
            for other in report.status.unreachable
            if not obstacle(cluster, other)
        }
        # The witnesses of a dead node are fine: it has a finding of its own.
        if pairs:
            nodes = sorted({node for pair in pairs for node in pair})
            step = step or "check the network between them, and the log of nvidia-imex on both nodes"
            yield about(partition, "NVLinkPartition", cause, step, "", *nodes)


@rule(
    "IMEX311",
    Severity.WARNING,
    Link.PARTITION,
    "Nodes of a partition have different versions of the GPU driver",
    why="""nvidia-imex supports a domain of equal versions. During an upgrade of the rack different ones are
    expected; they should not stay.""",
    finds="members run different versions of the GPU driver: 570.1 (r0-n00), 580.2 (r0-n01)",
)
def version_skew(cluster: Cluster) -> Iterator[Problem]:
    for partition, cause, step, members in _partitions_with(cluster, VERSION_SKEW, "True"):
        yield about(partition, "NVLinkPartition", cause, step or "upgrade the other nodes", "", *members)


@rule(
    "IMEX312",
    Severity.WARNING,
    Link.PARTITION,
    "Nodes of a partition offer different numbers of channels",
    why="""The GPU drivers were loaded with different values of NVreg_ImexChannelCount. Only as many channels
    can be used as the node with the smallest number offers.""",
    finds="""the GPU drivers of the members offer different numbers of channels: 1024 (r0-n00), 2048
    (r0-n01)""",
)
def channel_skew(cluster: Cluster) -> Iterator[Problem]:
    for partition, cause, step, members in _partitions_with(cluster, CHANNEL_SKEW, "True"):
        step = step or "set the same NVreg_ImexChannelCount on all nodes of the partition"
        yield about(partition, "NVLinkPartition", cause, step, "", *members)


@rule(
    "IMEX313",
    Severity.WARNING,
    Link.PARTITION,
    "The clique label of a node is wrong",
    why="""Pods are kept in one partition by the node label nvidia.com/gpu.clique. Here another program set it
    to a value that differs from what the GPUs report, so that pods may be placed in different partitions.""",
    finds="""the label nvidia.com/gpu.clique of node r0-n01 is bbbb.1, set by gpu-feature-discovery, but its GPUs
    report aaaa.1, so pods that select by this label may miss their partition""",
)
def wrong_label(cluster: Cluster) -> Iterator[Problem]:
    for partition, cause, step, members in _partitions_with(cluster, CLIQUE_LABELS, "False"):
        yield about(partition, "NVLinkPartition", cause, step or "correct what sets it", "", *members)


@rule(
    "IMEX314",
    Severity.WARNING,
    Link.CHANNEL,
    "Released channels cannot be reused",
    why="""A channel is reused only after every member has confirmed that no process holds it. A member that
    does not answer keeps it. That is harmless while there are other channels, of which there are about 2,000.""",
    finds="1 released channel cannot be reused yet: r0-n01 has not confirmed",
)
def channels_held(cluster: Cluster) -> Iterator[Problem]:
    for partition, cause, step, members in _partitions_with(cluster, CHANNELS_REUSABLE, "False"):
        yield about(partition, "NVLinkPartition", cause, step or "check the nodes that it names", "", *members)


@rule(
    "IMEX315",
    Severity.WARNING,
    Link.CHANNEL,
    "Another component can hand out channels on a node",
    why="""Isolation by channel holds only if nothing but this driver gives channel devices to containers. Here
    the container runtime, the GPU driver or a device plugin does it, too (SECURITY.md).""",
    finds="channels are not isolated on r0-n01: the GPU driver creates channel 0 for every process",
)
def open_isolation(cluster: Cluster) -> Iterator[Problem]:
    for node, report in cluster.nvlink_nodes.items():
        isolation = report.status.isolation
        if isolation.state is IsolationState.OPEN:
            message = f"channels are not isolated on {node}: {isolation.reason or 'no reason given'}"
            yield about_node(node, message, "see SECURITY.md for how to turn it off")


RULES = (
    not_connected,
    version_skew,
    channel_skew,
    wrong_label,
    channels_held,
    open_isolation,
)
