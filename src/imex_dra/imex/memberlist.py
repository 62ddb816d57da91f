"""The member list of a partition's IMEX domain: the address of each index.

The controller maintains the list, `imex node` sends it to `imex daemon`, and `imex daemon` writes it into the
files of nvidia-imex. All daemons of a partition must have the same node map (index to name) forever, so it
depends only on `max_nodes` and `name_format`, which never change. Only the addresses behind the names change. See
docs/design/membership.md.
"""

from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from imex_dra.api.nvlinkpartition import MemberState, NVLinkPartition
from imex_dra.base.files import write_atomically

log = structlog.get_logger()

UNUSED_ADDRESS = "127.0.0.2"
"""The address of an index without a member: it refuses connections at once, so nvidia-imex does not wait."""


class MemberList(Struct, frozen=True, rename="camel"):
    partition: str
    generation: int
    max_nodes: int
    name_format: str
    addresses: dict[str, str]
    """Addresses by index. JSON has no integer keys."""
    own_index: int
    """-1: the node is not a member; a daemon that runs in another partition must stop."""
    own_address: str

    def nodes_file(self) -> str:
        return "".join(f"{self.name_format % index}\n" for index in range(self.max_nodes))

    def hosts(self) -> dict[str, str]:
        """The address of each name. Every index has one, so that no name is ever looked up in DNS."""
        return {
            self.name_format % index: self.addresses.get(str(index), UNUSED_ADDRESS)
            for index in range(self.max_nodes)
        }


def leave(partition: str) -> MemberList:
    """Tells `imex daemon` that the node is in this partition, but not a member: it must leave any other one. With
    an empty partition it must leave whichever it is in.
    """
    return MemberList(partition, 0, 0, "", {}, own_index=-1, own_address="")


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
        addresses={str(member.index): member.address for member in members},
        own_index=own.index,
        own_address=own.address,
    )


class MemberListFile:
    """The last member list of the node, which survives a reboot."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> MemberList | None:
        """None if the file is missing or invalid: `imex node` sends the list again."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=MemberList)
        except (OSError, ValueError, RecursionError):
            return None

    def write(self, member_list: MemberList) -> None:
        # Without the file, nvidia-imex only has to wait for `imex node` after the next reboot. So a failure is
        # logged and not raised.
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, msgspec.json.encode(member_list))
        except OSError as error:
            log.error("the member list cannot be saved for a restart", file=str(self._path), error=str(error))

    def remove(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.error("the member list cannot be removed", file=str(self._path), error=str(error))
