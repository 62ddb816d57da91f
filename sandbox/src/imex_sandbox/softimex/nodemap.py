"""The node map: the entries of the nodes config file, in the order that defines the node IDs.

The map identifies the IMEX domain: a daemon reads it once at start, and two daemons communicate only if their maps
are equal. The IP addresses behind the entries may change.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from imex_sandbox.softimex.config import Config
from imex_sandbox.softimex.errors import StartError
from imex_sandbox.softimex.noderoot import NodeRoot
from imex_sandbox.softimex.sockets import is_address

MAX_NODES = 2**16


class LocalNode(NamedTuple):
    """This node's entry in the node map."""

    node_index: int
    address: str


def parse_nodes(text: str) -> tuple[str, ...]:
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def read_nodes(path: str) -> tuple[str, ...]:
    try:
        with open(path, errors="replace") as file:
            entries = parse_nodes(file.read())
    except OSError as error:
        raise StartError(f"Failed to read node configuration file {path}: {error.strerror}") from error
    if not 0 < len(entries) <= MAX_NODES:
        raise StartError(
            f"Failed to read node configuration file {path}: it lists {len(entries)} nodes, not 1 to {MAX_NODES}"
        )
    return entries


def resolve(entry: str, hosts: Mapping[str, str]) -> str | None:
    return entry if is_address(entry) else hosts.get(entry)


def find_local_node(
    entries: Sequence[str], hosts: Mapping[str, str], own: Collection[str], bind: str = ""
) -> LocalNode | None:
    """The first entry that resolves to an address of this node or, if set, to BIND_INTERFACE_IP."""
    wanted = {bind} & set(own) if bind else set(own)
    for index, entry in enumerate(entries):
        address = resolve(entry, hosts)
        if address in wanted:
            return LocalNode(index, address)
    return None


def require_local_node(root: NodeRoot, config: Config, entries: Sequence[str]) -> LocalNode:
    local = find_local_node(entries, root.hosts(), root.addresses(), config.bind_interface_ip)
    if local is None:
        own = ", ".join(root.addresses()) or f"none, see {root.file('addresses')}"
        bind = f" and BIND_INTERFACE_IP={config.bind_interface_ip}" if config.bind_interface_ip else ""
        raise StartError(
            f"No matching network interface found: none of the {len(entries)} entries of"
            f" {config.imex_node_config_file} resolves to an address of this node ({own}){bind}"
        )
    return local


def map_key(entries: Sequence[str]) -> str:
    """A hash that is equal only for equal node maps."""
    return hashlib.sha256("\n".join(entries).encode()).hexdigest()
