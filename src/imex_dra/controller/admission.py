"""Whether a node may join a partition's IMEX domain, and why not. Pure.

A node that joins is connected to every member, so it must not hold a channel that another ComputeDomain has here,
and must not be able to commit an older assignment. See docs/design/membership.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from imex_dra.api import partitionreasons
from imex_dra.api.limits import MAX_NODES
from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import HeldChannel, NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelAssignment, Member
from imex_dra.api.reasons import Explanation, listed
from imex_dra.controller.nodelists import list_refusal
from imex_dra.controller.plausibility import has_too_few_channels


class Admission(NamedTuple):
    """Decides whether a node may join the partition."""

    partition: PartitionId
    epoch: int
    channels: tuple[ChannelAssignment, ...]
    channel_count: int = 0
    """Channels that the partition uses."""
    pods: Mapping[tuple[str, str], Sequence[str]] = {}
    """Pods with a claim, by node and UID of the ComputeDomain."""
    other_partitions: Mapping[str, str] = {}
    """By node: another partition that lists it as a member."""
    node_list_digest: str = ""
    members: tuple[Member, ...] = ()
    max_nodes: int = MAX_NODES

    def is_admissible(self, nvlink_node: NVLinkNode) -> bool:
        return self._has_acknowledged(nvlink_node) and self.refusal(nvlink_node) is None

    def refusals(self, nvlink_nodes: Iterable[NVLinkNode]) -> list[Explanation]:
        """For those of these nodes that are in the partition."""
        waiting = (nvlink_node for nvlink_node in nvlink_nodes if nvlink_node.status.partition == self.partition)
        return [refusal for nvlink_node in waiting if (refusal := self.refusal(nvlink_node))]

    def refusal(self, nvlink_node: NVLinkNode) -> Explanation | None:
        """Why the node cannot join. None while it has not acknowledged the epoch: its report is not current."""
        if not self._has_acknowledged(nvlink_node):
            return None
        node, status = nvlink_node.metadata.name, nvlink_node.status
        foreign = self._foreign_channels(status.held_channels)
        if foreign:
            holders = [self._holder(node, held) for held in foreign]
            return partitionreasons.drain_first(node=node, partition=self.partition, holders=holders)
        if (other := self.other_partitions.get(node)) is not None:
            return partitionreasons.member_of_other_partition(node=node, partition=self.partition, other=other)
        # Until its daemon has left the other IMEX domain, processes on the node are connected to both.
        if status.imex_partition not in ("", self.partition):
            return partitionreasons.daemon_in_other_partition(
                node=node, partition=self.partition, other=status.imex_partition
            )
        if has_too_few_channels(nvlink_node, self.channel_count):
            return partitionreasons.too_few_channels(
                node=node, partition=self.partition, count=status.channel_count, used=self.channel_count
            )
        return list_refusal(self.partition, nvlink_node, self.node_list_digest, self.members, self.max_nodes)

    def _has_acknowledged(self, nvlink_node: NVLinkNode) -> bool:
        # The fence of an older epoch would still let the node prepare a claim with a channel that has since been
        # assigned to another ComputeDomain.
        return nvlink_node.status.acknowledged_epoch >= self.epoch

    def _foreign_channels(self, held_channels: Sequence[HeldChannel]) -> list[HeldChannel]:
        # A channel number is one device on a node, whichever partition assigned it. So everything that the node
        # holds must be assigned here to the same ComputeDomain. A released channel is fine: it is not
        # reused while the node reports that it holds it.
        held_here = {held.channel for held in held_channels}
        known = {
            (self.partition, entry.channel, entry.compute_domain.uid)
            for entry in self.channels
            if entry.channel in held_here
        }
        return [h for h in held_channels if (h.partition, h.channel, h.compute_domain) not in known]

    def _holder(self, node: str, held: HeldChannel) -> str:
        pods = self.pods.get((node, held.compute_domain))
        holder = f"pods {listed(pods)}" if pods else f"ComputeDomain {held.compute_domain}"
        return f"{holder} (channel {held.channel} of {held.partition})"


def combined(problems: Sequence[Explanation]) -> Explanation:
    """With the reason of the first."""
    return Explanation(problems[0].reason, listed([problem.message() for problem in problems], "; "))
