"""The node lists of IMEX daemons that hosts manage (`imex node --imex host-managed`). Pure.

In this mode the driver writes no list and chooses no index; it compares what the nodes report. Two daemons talk to
each other only if their lists are equal, so the list that most members have counts, and a node with another one is
not Ready. The list of a daemon that this driver manages counts as one of its own, with an empty digest.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from imex_dra.api import nodereasons, partitionreasons
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import ImexState, NVLinkNode, NVLinkNodeStatus
from imex_dra.api.nvlinkpartition import Member, MemberState
from imex_dra.api.reasons import Explanation


def common_digest(
    partition: PartitionId, before: str, members: Iterable[Member], nvlink_nodes: Mapping[str, NVLinkNode]
) -> str:
    """Of the list that most members have, or most nodes while there is no member. A tie changes nothing."""
    inside = [member.node for member in members if member.state is not MemberState.LEAVING]
    voters = [node for node in inside if node in nvlink_nodes] or list(nvlink_nodes)
    reports = [nvlink_nodes[node].status for node in voters]
    votes = Counter(_digest(report) for report in reports if report.partition == partition and _is_known(report))
    most = max(votes.values(), default=0)
    found = sorted(digest for digest, count in votes.items() if count == most)
    return before if before in found or not found else found[0]


def has_common_list(nvlink_node: NVLinkNode, digest: str) -> bool:
    return _is_known(nvlink_node.status) and _digest(nvlink_node.status) == digest


def list_refusal(
    partition: PartitionId, nvlink_node: NVLinkNode, digest: str, members: Iterable[Member], max_nodes: int
) -> Explanation | None:
    """Why a node cannot join, as far as its list and its index are concerned."""
    node, status = nvlink_node.metadata.name, nvlink_node.status
    is_host_managed = status.host_node_list is not None
    if is_host_managed and (status.index < 0 or not _is_known(status)):
        if status.imex_state is ImexState.READY:
            return nodereasons.host_index_unknown(node=node)
        return partitionreasons.host_daemon_not_ready(node=node, partition=partition, state=status.imex_state)
    if not has_common_list(nvlink_node, digest):
        owner = nodereasons.node_list_owner(is_host_managed=is_host_managed)
        return nodereasons.node_lists_differ(node=node, partition=partition, owner=owner)
    if not is_host_managed:
        return None
    if status.index >= max_nodes:
        return partitionreasons.host_index_too_high(
            node=node, partition=partition, index=status.index, max_nodes=max_nodes
        )
    holder = next((m.node for m in members if m.index == status.index and m.node != node), None)
    if holder is not None:
        return partitionreasons.host_index_taken(node=node, partition=partition, index=status.index, other=holder)
    return None


def with_host_indexes(
    members: Sequence[Member], nvlink_nodes: Mapping[str, NVLinkNode], digest: str, max_nodes: int
) -> list[Member]:
    """The members, with the indexes that their hosts have chosen: all of them, or none while two would share one,
    as in the middle of a change of the list.
    """
    if not digest:
        return list(members)
    moved = [structs.replace(m, index=_host_index(m, nvlink_nodes.get(m.node), digest)) for m in members]
    indexes = {member.index for member in moved}
    is_possible = len(indexes) == len(moved) and max(indexes, default=0) < max_nodes
    return moved if is_possible else list(members)


def _host_index(member: Member, nvlink_node: NVLinkNode | None, digest: str) -> int:
    if nvlink_node is None or not has_common_list(nvlink_node, digest) or nvlink_node.status.index < 0:
        return member.index
    return nvlink_node.status.index


def _digest(status: NVLinkNodeStatus) -> str:
    return status.host_node_list.digest if status.host_node_list else ""


def _is_known(status: NVLinkNodeStatus) -> bool:
    return status.host_node_list is None or bool(status.host_node_list.digest)
