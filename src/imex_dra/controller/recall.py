"""When a channel that was given back may be used again. Pure.

A vanished claim does not prove that a process is gone, so a number that was given back rests. To get numbers
back the controller raises the partition's `recall`. Every member answers on its card with what it holds, after
its ledger has promised on disk to take no grant from before that recall. All records with a recall above a
resting entry's own show it as resting, so after the answer nobody on that node can be given it any more: it is
free when every member has answered such a recall and nobody holds it. Members that say nothing are in the way.

Recalls are rare, because each costs a write per node: when a quarter of all numbers rests unasked, or when
somebody asks for a channel in vain.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelAssignment, ChannelState

_SHARE = 4
"""One in so many numbers may rest before the members are asked."""


class Answers(NamedTuple):
    """Who has to answer in a partition, and all cards that may say something about it."""

    partition: PartitionId
    members: tuple[str, ...]
    """Leaving ones too: until all others run without them, they are connected."""
    cards: Mapping[str, NVLinkNode]

    def answered(self, node: str) -> int:
        """The last recall of this partition that a node has answered; -1: none that is known."""
        card = self.cards.get(node)
        if card is None or card.status.partition != self.partition:
            return -1
        return card.status.answered_recall

    def silent(self, recall: int) -> list[str]:
        """Members that have not answered this recall."""
        return [node for node in self.members if self.answered(node) < recall]

    def holders(self, channel: int) -> list[str]:
        """Members or not: whoever holds it may be let in one day."""
        wanted = (self.partition, channel)
        return [
            node
            for node, card in sorted(self.cards.items())
            if any((held.partition, held.channel) == wanted for held in card.status.held_channels)
        ]


def is_free(entry: ChannelAssignment, answers: Answers) -> bool:
    resting = entry.state is ChannelState.RESTING
    return resting and not answers.silent(entry.recall + 1) and not answers.holders(entry.channel)


def next_recall(
    recall: int, entries: Iterable[ChannelAssignment], answers: Answers, *, count: int, in_vain: bool
) -> int:
    """One higher if it is time to ask; never while an earlier question is open."""
    unasked = sum(e.state is ChannelState.RESTING and e.recall >= recall for e in entries)
    worth_it = in_vain or unasked * _SHARE >= count - 1
    return recall + 1 if unasked and worth_it and not answers.silent(recall) else recall


def in_the_way(entries: Iterable[ChannelAssignment], recall: int, answers: Answers) -> tuple[int, list[str]]:
    """How many numbers could be free, had everybody answered and let go; and who is in the way, and why."""
    asked = [e for e in entries if e.state is ChannelState.RESTING and e.recall < recall]
    reasons = [f"{node} {_silence(answers, node, recall)}" for node in answers.silent(recall)] if asked else []
    for entry in asked:
        holders = answers.holders(entry.channel)
        reasons += [f"{node} holds channel {entry.channel} (delete the pod that uses it)" for node in holders]
    return len(asked), reasons


def _silence(answers: Answers, node: str, recall: int) -> str:
    silent = answers.answered(node) < 0
    said = "says nothing" if silent else f"has not answered recall {recall}"
    return f"{said} (bring it back; if it is switched off for good, delete its Node)"
