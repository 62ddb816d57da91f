"""May a node join a partition? Pure.

It joins with an answer to the latest recall, so that no older grant reaches it any more; with nothing but
channels that the record gave to the same ComputeDomains, because on one node a number is one device, and in one
partition one memory; and after its daemon has left the partition that the node came from.
"""

from collections.abc import Mapping
from typing import NamedTuple

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import HeldChannel, NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelAssignment
from imex_dra.api.reasons import Reason, sentence


class Refusal(NamedTuple):
    node: str
    reason: Reason | None
    """None: it has not answered yet."""
    words: str = ""


class Doorkeeper(NamedTuple):
    partition: PartitionId
    recall: int
    channels: tuple[ChannelAssignment, ...]
    users: Mapping[tuple[str, str], str] = {}
    """Who holds a claim of a ComputeDomain on a node, by node and UID, in words."""

    def refusal(self, card: NVLinkNode) -> Refusal | None:
        """A channel that rests for its ComputeDomain is no hindrance: the card will say when it has let go."""
        node, status = card.metadata.name, card.status
        if status.answered_recall < self.recall:
            return Refusal(node, None)
        known = {(self.partition, entry.channel, entry.compute_domain.uid) for entry in self.channels}
        foreign = [held for held in status.held_channels if _triple(held) not in known]
        if foreign:
            holders = ", ".join(self._words(node, held) for held in foreign)
            return self._because(Reason.DRAIN_FIRST, node, holders=holders)
        if status.imex_partition not in ("", self.partition):
            return self._because(Reason.DAEMON_ELSEWHERE, node, elsewhere=status.imex_partition)
        return None

    def _words(self, node: str, held: HeldChannel) -> str:
        user = self.users.get((node, held.compute_domain), f"ComputeDomain {held.compute_domain}")
        return f"{user} (channel {held.channel} of {held.partition})"

    def _because(self, reason: Reason, node: str, **facts: str) -> Refusal:
        return Refusal(node, reason, sentence(reason, node=node, partition=self.partition, **facts))


def _triple(held: HeldChannel) -> tuple[str, int, str]:
    return held.partition, held.channel, held.compute_domain
