"""Who is in a partition, and in which slot. Pure.

A member leaves only on positive evidence: its Node is gone, or its card names another partition. Silence (no
card, a fabric that is not up) is no evidence: state Unknown or NotReady, slot and address kept. A slot is used
again only after every other member said that it runs with a list that lacks its last owner; one that is silent
may well run with the old list.

A record that was lost, or came back from a backup, is carried on from the cards: a node that nobody knows gets
the slot in which its daemon runs, so that nothing has to restart, and generations go on above the highest that a
daemon applied, because daemons refuse older lists.
"""

from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from msgspec import structs

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import FabricState, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import Member, MemberState

Admitted = Callable[[NVLinkNode], bool]


class Roster(NamedTuple):
    members: tuple[Member, ...]
    generation: int
    homeless: tuple[str, ...] = ()
    """Nodes for which there is no slot left."""


def plan_members(
    partition: PartitionId,
    roster: Roster,
    *,
    slots: int,
    cards: Mapping[str, NVLinkNode],
    nodes: Set[str],
    admitted: Admitted = lambda card: True,
) -> Roster:
    """`admitted`: whether a node that is no member, or was about to leave, may come in."""
    latest = max(roster.generation, *_applied(partition, cards), 0)
    generation = latest + 1
    present = {node for node in nodes if node in cards and _belongs(partition, cards[node])}
    welcome = {node for node in present if admitted(cards[node])}
    members = [
        _updated(partition, member, cards.get(member.node), nodes, welcome, generation)
        for member in roster.members
    ]
    members = [member for member in members if not _has_left(member, members, cards)]
    newcomers, homeless = _newcomers(members, slots, cards, welcome)
    members = sorted([*members, *newcomers], key=lambda member: member.slot)
    changed = _mapping(members) != _mapping(roster.members)
    return Roster(tuple(members), generation if changed else latest, homeless)


def state_of(member: Member, card: NVLinkNode) -> MemberState:
    status = card.status
    whole = status.fabric.state is FabricState.OK
    if whole and status.imex_state is ImexState.READY and status.slot == member.slot:
        return MemberState.READY
    return MemberState.JOINING if member.state is MemberState.JOINING else MemberState.NOT_READY


def _updated(
    partition: PartitionId,
    member: Member,
    card: NVLinkNode | None,
    nodes: Set[str],
    welcome: Set[str],
    generation: int,
) -> Member:
    elsewhere = card is not None and card.status.partition not in ("", partition)
    if member.node not in nodes or elsewhere:
        if member.state is MemberState.LEAVING:
            return member
        return structs.replace(member, state=MemberState.LEAVING, left_generation=generation)
    if member.state is MemberState.LEAVING:
        if member.node not in welcome:
            return member
        member = structs.replace(member, state=MemberState.JOINING, left_generation=0)
    if card is None or not card.status.partition or not card.status.address:
        return structs.replace(member, state=MemberState.UNKNOWN)
    return structs.replace(member, address=card.status.address, state=state_of(member, card))


def _has_left(member: Member, members: list[Member], cards: Mapping[str, NVLinkNode]) -> bool:
    if member.state is not MemberState.LEAVING:
        return False
    staying = (cards.get(m.node) for m in members if m.state is not MemberState.LEAVING)
    return all(card and card.status.applied_generation >= member.left_generation for card in staying)


def _newcomers(
    members: list[Member], slots: int, cards: Mapping[str, NVLinkNode], welcome: Set[str]
) -> tuple[list[Member], tuple[str, ...]]:
    known = {member.node for member in members}
    taken = {member.slot for member in members}
    free = [slot for slot in range(slots) if slot not in taken]
    arriving = sorted(welcome - known, key=lambda name: (cards[name].status.slot not in free, name))
    newcomers, homeless = [], []
    for name in arriving:
        card = cards[name].status
        if not free:
            homeless.append(name)
            continue
        slot = card.slot if card.slot in free else free[0]
        free.remove(slot)
        newcomers.append(Member(name, slot, card.address, MemberState.JOINING))
    return newcomers, tuple(homeless)


def _belongs(partition: PartitionId, card: NVLinkNode) -> bool:
    status = card.status
    return status.fabric.state is FabricState.OK and status.partition == partition and bool(status.address)


def _mapping(members: list[Member] | tuple[Member, ...]) -> dict[int, str]:
    """What a daemon's files are made of."""
    return {member.slot: member.address for member in members if member.state is not MemberState.LEAVING}


def _applied(partition: PartitionId, cards: Mapping[str, NVLinkNode]) -> list[int]:
    mine = (card.status for card in cards.values() if card.status.partition == partition)
    return [status.applied_generation for status in mine]
