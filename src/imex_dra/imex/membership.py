"""The member list of a partition, as a daemon needs it: which slot is where.

The list comes from the controller through the node program; the agent turns it into IMEX's own files. The
node map (the names of all slots) must be equal in every daemon of the partition, for ever: it is made of
`slots` and `name_format` alone, which never change. Only the addresses behind the names do.
"""

from msgspec import Struct

from imex_dra.api.nvlinkpartition import MemberState, NVLinkPartition

EMPTY_SLOT = "127.0.0.2"
"""An address that nobody has: it refuses at once, so that IMEX does not wait for it and DNS is never asked."""


class Membership(Struct, frozen=True, rename="camel"):
    partition: str
    generation: int
    slots: int
    name_format: str
    addresses: dict[str, str]
    """By slot, as JSON has no other keys."""
    own_slot: int
    """-1: none yet; a daemon that runs in another partition has to end."""
    own_address: str

    def nodes_file(self) -> str:
        return "".join(f"{self.name_format % slot}\n" for slot in range(self.slots))

    def hosts(self) -> dict[str, str]:
        """Name to address, of every slot, so that no name is ever looked up elsewhere."""
        return {self.name_format % slot: self.addresses.get(str(slot), EMPTY_SLOT) for slot in range(self.slots)}


def farewell(partition: str) -> Membership:
    """The node is in this partition now, and no member of it: whatever runs in another one ends."""
    return Membership(partition, 0, 0, "", {}, own_slot=-1, own_address="")


def membership_of(partition: NVLinkPartition, node: str) -> Membership | None:
    """None while the node is no member."""
    members = [member for member in partition.status.members if member.state is not MemberState.LEAVING]
    own = next((member for member in members if member.node == node), None)
    if own is None:
        return None
    return Membership(
        partition=partition.metadata.name,
        generation=partition.status.generation,
        slots=partition.spec.slots,
        name_format=partition.spec.name_format,
        addresses={str(member.slot): member.address for member in members},
        own_slot=own.slot,
        own_address=own.address,
    )
