"""The member list of a partition's IMEX domain: the address of each index.

The controller maintains the list, and `imex node` writes it into the files of nvidia-imex. All daemons of a
partition must have the same node map (index to name) forever, so it depends only on `max_nodes` and `name_format`,
which never change. Only the addresses behind the names change. See docs/design/membership.md.
"""

from typing import NamedTuple

from msgspec import Struct

from imex_dra.api.nvlinkpartition import MemberState, NVLinkPartition

_NO_IMPORTERS = (MemberState.JOINING, MemberState.SUSPENDED)


class MemberList(Struct, frozen=True):
    partition: str
    generation: int
    max_nodes: int
    name_format: str
    addresses: dict[int, str]
    """By index."""
    own_index: int
    own_address: str
    possible_importers: tuple[int, ...] = ()
    """Indexes of other members whose processes may have imported memory of this node. Not one that has never been
    Ready, and not one that is Suspended: nothing waits for it any more.
    """
    boot_ids: dict[int, str] = {}
    """Of the members that have reported one, by index."""


class Leave(NamedTuple):
    """The node is in this partition, but not a member: a daemon that runs in any other partition must stop. If it
    is empty, the daemon must stop wherever it runs.
    """

    partition: str


def member_list_of(partition: NVLinkPartition, node: str) -> MemberList | None:
    """None while the node is not a member, and while the list may be incomplete."""
    # A partition that recovers knows only the members that have reported so far. A daemon that applied such a list
    # would disconnect all others.
    if partition.status.pending_reports:
        return None
    members = [member for member in partition.status.members if member.state is not MemberState.LEAVING]
    own = next((member for member in members if member.node == node), None)
    if own is None:
        return None
    return MemberList(
        partition=partition.metadata.name,
        generation=partition.status.generation,
        max_nodes=partition.spec.max_nodes,
        name_format=partition.spec.name_format,
        addresses={member.index: member.address for member in members},
        own_index=own.index,
        own_address=own.address,
        boot_ids={member.index: member.boot_id for member in members if member.boot_id},
        possible_importers=tuple(m.index for m in members if m is not own and m.state not in _NO_IMPORTERS),
    )
