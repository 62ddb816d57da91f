"""Who is in the IMEX domain: the nodes file, and the addresses behind its entries.

The order of the entries defines the node ids. The map of ids to entries, as strings, is all the identity that
an IMEX domain has: it is read once, and two daemons talk only if theirs are equal. Addresses may change under
the same entries. Pure functions over text.
"""

import hashlib
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from imex_dra.softimex.errors import StartError
from imex_dra.softimex.sockets import family

MOST_NODES = 2**16


class Seat(NamedTuple):
    """Where a daemon sits in the map."""

    slot: int
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
    if not 0 < len(entries) <= MOST_NODES:
        raise StartError(f"Failed to read node configuration file {path}: it lists {len(entries)} nodes")
    return entries


def parse_hosts(text: str) -> dict[str, str]:
    """Names to addresses, in the syntax of /etc/hosts; the first line that has a name wins."""
    hosts: dict[str, str] = {}
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        for name in names:
            hosts.setdefault(name, address)
    return {name: address for name, address in hosts.items() if is_address(address)}


def is_address(text: str) -> bool:
    try:
        socket.inet_pton(family(text), text)
    except (OSError, ValueError):
        return False
    return True


def resolve(entry: str, hosts: Mapping[str, str]) -> str | None:
    return entry if is_address(entry) else hosts.get(entry)


def find_seat(
    entries: Sequence[str], hosts: Mapping[str, str], own: Collection[str], bind: str = ""
) -> Seat | None:
    """The first entry that resolves to an address of this node, or to the one it is told to bind."""
    wanted = {bind} & set(own) if bind else set(own)
    for slot, entry in enumerate(entries):
        address = resolve(entry, hosts)
        if address in wanted:
            return Seat(slot, address)
    return None


def key(entries: Sequence[str]) -> str:
    """Equal exactly if the maps of ids to entries are equal."""
    return hashlib.sha256("\n".join(entries).encode()).hexdigest()
