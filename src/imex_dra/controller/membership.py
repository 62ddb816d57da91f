"""The members of a partition: which index each one has, and when one has left. Pure.

A member leaves only on positive evidence: its Node object is gone, its NVLinkNode names another partition or
proves that there is no NVLink fabric, or its report cannot be true. A missing report, a Node that is not Ready or
a fabric that is not up is not evidence: the state becomes Unknown or NotReady, and the member keeps its index and
address. An index is used again only after every other member has applied a member list without its previous owner;
a member that does not report may still run with an older list, unless it is Suspended (`liveness`).

See docs/design/membership.md.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import NamedTuple

from msgspec import structs

from imex_dra.api.names import PartitionId
from imex_dra.api.nvlinknode import FabricState, ImexState, NVLinkNode
from imex_dra.api.nvlinkpartition import Member, MemberState
from imex_dra.controller.liveness import Liveness
from imex_dra.controller.nodelists import has_common_list, with_host_indexes
from imex_dra.controller.plausibility import has_too_few_channels


class MemberPlan(NamedTuple):
    members: tuple[Member, ...]
    generation: int
    freed_indexes: tuple[int, ...] = ()
    """Oldest first."""
    without_index: tuple[str, ...] = ()
    """Nodes for which no index is free."""


class MemberInputs(NamedTuple):
    partition: PartitionId
    max_nodes: int
    nvlink_nodes: Mapping[str, NVLinkNode]
    """Without those of expelled nodes."""
    existing_nodes: Set[str]
    liveness: Liveness
    is_admissible: Callable[[NVLinkNode], bool] = lambda nvlink_node: True
    """Asked for nodes that are not members, and for members that are Leaving or Suspended."""
    expelled: Set[str] = frozenset()
    """Nodes whose report cannot be true."""
    contradicted: Set[str] = frozenset()
    """Members that name another partition although a live member still reaches them here."""
    channel_count: int = 0
    """Channels that the partition uses."""
    node_list_digest: str = ""
    """Of the node list that every member must have; empty if this driver manages the IMEX daemons."""
    recovered: bool = False
    """Whether the last pending report of a recovering partition has arrived with this plan."""

    @property
    def present(self) -> set[str]:
        """Nodes that may be members, apart from admission."""
        excluded = self.expelled | self.contradicted
        return {
            node
            for node in self.existing_nodes - excluded
            if node in self.nvlink_nodes and _belongs(self.partition, self.nvlink_nodes[node])
        }


def plan_members(current: MemberPlan, inputs: MemberInputs) -> MemberPlan:
    nvlink_nodes = inputs.nvlink_nodes
    # Daemons refuse a member list that is older than the one they applied, so generations continue above the
    # highest applied one even if the partition status does not know it.
    latest = max(current.generation, *_applied_generations(inputs), 0)
    active = {member.node for member in counted(current.members)}
    admissible = {node for node in inputs.present - active if inputs.is_admissible(nvlink_nodes[node])}
    update = _Update(inputs, admissible, latest)
    # Hosts that manage their daemons have chosen the indexes. First of all: the states below depend on them.
    before = with_host_indexes(current.members, nvlink_nodes, inputs.node_list_digest, inputs.max_nodes)
    members = [update.member(member) for member in before]
    # Dated first, because suspension depends on it; and again below, because suspension is a change of state.
    members = inputs.liveness.with_since(members, current.members)
    members = inputs.liveness.suspended(members, nvlink_nodes)
    members = [member for member in members if not _has_left(member, members, nvlink_nodes)]
    staying_indexes = {member.index for member in members}
    freed = [*current.freed_indexes, *(m.index for m in current.members if m.index not in staying_indexes)]
    joining, without_index = _joining_members(members, _free_indexes(members, freed, inputs), inputs, admissible)
    members = inputs.liveness.with_since([*members, *joining], current.members)
    members.sort(key=lambda member: member.index)
    changed = _addresses(members) != _addresses(current.members)
    taken = {member.index for member in members}
    freed = [index for index in freed if index not in taken]
    return MemberPlan(tuple(members), latest + changed, tuple(freed), without_index)


def staying(members: Iterable[Member]) -> list[Member]:
    return [member for member in members if member.state is not MemberState.LEAVING]


def counted(members: Iterable[Member]) -> list[Member]:
    """The members that others wait for."""
    return [member for member in staying(members) if member.state is not MemberState.SUSPENDED]


class _Update(NamedTuple):
    """The next state of a member that there is already."""

    inputs: MemberInputs
    admissible: Set[str]
    generation: int
    """Of the current member list."""

    def member(self, member: Member) -> Member:
        nvlink_node = self.inputs.nvlink_nodes.get(member.node)
        if self._is_gone(member.node, nvlink_node) or self._is_refused_after_recovery(member):
            return self._leaving(member)
        if member.state is MemberState.LEAVING:
            # It may have been in another partition in between, so it must pass admission like a new node.
            if member.node not in self.admissible:
                return member
            member = structs.replace(member, state=MemberState.JOINING, left_generation=0)
        address, boot_id = member.address, member.boot_id
        if nvlink_node and self._is_usable(nvlink_node):
            address, boot_id = nvlink_node.status.address, nvlink_node.status.boot_id or boot_id
        member = structs.replace(member, address=address, boot_id=boot_id)
        if member.state is MemberState.SUSPENDED:
            if not self._may_return(member):
                return member
            return structs.replace(member, state=MemberState.JOINING, suspended_epoch=0)
        return structs.replace(member, state=self._state(member, nvlink_node))

    def _is_gone(self, node: str, nvlink_node: NVLinkNode | None) -> bool:
        if node not in self.inputs.existing_nodes or node in self.inputs.expelled:
            return True
        if nvlink_node is None:
            return False
        moved = nvlink_node.status.partition not in ("", self.inputs.partition)
        has_no_fabric = nvlink_node.status.fabric.state is FabricState.NONE
        return (moved or has_no_fabric) and node not in self.inputs.contradicted

    def _is_refused_after_recovery(self, member: Member) -> bool:
        # A member that recovery kept without proof is Suspended, and no daemon got a list with it so far. From now
        # on daemons do, so it must be admissible. It was reported, so this is not about silence.
        return (
            self.inputs.recovered and member.state is MemberState.SUSPENDED and member.node not in self.admissible
        )

    def _leaving(self, member: Member) -> Member:
        if member.state is MemberState.LEAVING:
            return member
        left = self.generation + 1
        return structs.replace(member, state=MemberState.LEAVING, left_generation=left, suspended_epoch=0)

    def _may_return(self, member: Member) -> bool:
        if member.node not in self.admissible:
            return False
        if self.inputs.recovered:
            return True
        # While it was Suspended, members may have left without its daemon having applied a list without them. With
        # an older list it is still connected to them, and they may hold channels that were reused since.
        status = self.inputs.nvlink_nodes[member.node].status
        is_current = (
            status.imex_partition == self.inputs.partition and status.applied_generation >= self.generation
        )
        return is_current and member.node not in self.inputs.liveness.not_ready_nodes

    def _is_usable(self, nvlink_node: NVLinkNode) -> bool:
        return nvlink_node.status.partition == self.inputs.partition and bool(nvlink_node.status.address)

    def _state(self, member: Member, nvlink_node: NVLinkNode | None) -> MemberState:
        if nvlink_node is None or not self._is_usable(nvlink_node):
            return MemberState.UNKNOWN
        # A dead node's last report says READY for ever.
        if member.node in self.inputs.liveness.not_ready_nodes:
            return MemberState.UNKNOWN
        status = nvlink_node.status
        works = status.fabric.state is FabricState.OK and status.imex_state is ImexState.READY
        if has_too_few_channels(nvlink_node, self.inputs.channel_count):
            return MemberState.NOT_READY
        if works and status.index == member.index and has_common_list(nvlink_node, self.inputs.node_list_digest):
            return MemberState.READY
        return MemberState.JOINING if member.state is MemberState.JOINING else MemberState.NOT_READY


def _has_left(member: Member, members: list[Member], nvlink_nodes: Mapping[str, NVLinkNode]) -> bool:
    if member.state is not MemberState.LEAVING:
        return False
    # A daemon with an older list still connects to the leaving node. A daemon that does not report counts as such,
    # but not one that is Suspended: it gets no channel before it has applied the current list.
    others = [nvlink_nodes.get(other.node) for other in counted(members)]
    return all(other and other.status.applied_generation >= member.left_generation for other in others)


def _free_indexes(members: list[Member], freed: Iterable[int], inputs: MemberInputs) -> list[int]:
    """Those that were never used first, then the one that was freed longest ago: a daemon that is not
    known here may still run with an old list.
    """
    taken = {member.index for member in members}
    used = dict.fromkeys(index for index in freed if index not in taken)
    never_used = [index for index in range(inputs.max_nodes) if index not in taken and index not in used]
    return [*never_used, *used]


def _joining_members(
    members: list[Member], free: list[int], inputs: MemberInputs, admissible: Set[str]
) -> tuple[list[Member], tuple[str, ...]]:
    known = {member.node for member in members}
    # Nodes whose daemon already runs with a free index come first, so that no other node takes that index.
    reports = {node: inputs.nvlink_nodes[node].status for node in admissible - known}
    arriving = sorted(reports, key=lambda node: (reports[node].index not in free, node))
    joining, without_index = [], []
    for node in arriving:
        if not free:
            without_index.append(node)
            continue
        reported = reports[node].index
        if reports[node].host_node_list is not None and reported not in free:
            continue  # another node with this index joins at the same moment; the next plan refuses this one
        index = reported if reported in free else free[0]
        free.remove(index)
        found = reports[node]
        joining.append(Member(node, index, found.address, MemberState.JOINING, boot_id=found.boot_id))
    return joining, tuple(without_index)


def _belongs(partition: PartitionId, nvlink_node: NVLinkNode) -> bool:
    status = nvlink_node.status
    return status.fabric.state is FabricState.OK and status.partition == partition and bool(status.address)


def _addresses(members: Iterable[Member]) -> dict[int, str]:
    """By index: what the daemons' files are made of."""
    return {member.index: member.address for member in staying(members)}


def _applied_generations(inputs: MemberInputs) -> list[int]:
    reports = (nvlink_node.status for nvlink_node in inputs.nvlink_nodes.values())
    return [status.applied_generation for status in reports if status.partition == inputs.partition]
