"""The whole domain, as the ctl sees it: every node's own words, asked for over the command port, all at once.

A node that does not answer in time is UNAVAILABLE, and its row of the matrix is INVALID: nobody else's opinion
of it is put in its place.
"""

import socket
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imex_dra.softimex import nodemap
from imex_dra.softimex.errors import Malformed
from imex_dra.softimex.frames import Message
from imex_dra.softimex.loop import Loop
from imex_dra.softimex.noderoot import DROP
from imex_dra.softimex.sockets import begin_connection
from imex_dra.softimex.states import DaemonState, DomainState, LinkState, domain_state
from imex_dra.softimex.stream import Stream


class Node(NamedTuple):
    host: str
    """As the nodes file has it: an address or a name."""
    address: str
    state: DaemonState
    version: str
    links: tuple[LinkState, ...]


class Domain(NamedTuple):
    nodes: tuple[Node, ...]

    @property
    def state(self) -> DomainState:
        links = [state for node in self.nodes for state in node.links]
        return domain_state([node.state for node in self.nodes], links)


class Surroundings(NamedTuple):
    """From where and through which cables the ctl asks."""

    source: str
    hosts: Mapping[str, str]
    network: Mapping[str, float]
    port: int


class Query(Stream):
    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        super().__init__(loop, sock)
        self.reply: Message | None = None

    def opened(self) -> None:
        self.send({"query": "node"})

    def received(self, message: Message, descriptor: int | None) -> None:
        self.reply = message
        self.close("answered")

    def closed(self, why: str) -> None:
        return


def survey(entries: Sequence[str], surroundings: Surroundings, seconds: float) -> Domain:
    loop = Loop()
    addresses = [nodemap.resolve(entry, surroundings.hosts) or "" for entry in entries]
    queries = [_query(loop, address, surroundings) for address in addresses]
    deadline = time.monotonic() + seconds
    while any(query and query.alive for query in queries) and time.monotonic() < deadline:
        loop.step(max(0.0, deadline - time.monotonic()))
    for query in queries:
        if query:
            query.close("too late")
    loop.close()
    return Domain(
        tuple(
            interpret(entry, address, query.reply if query else None, len(entries))
            for entry, address, query in zip(entries, addresses, queries, strict=True)
        )
    )


def interpret(entry: str, address: str, reply: Message | None, size: int) -> Node:
    """Pure: whatever a node answered becomes a row of the table."""
    try:
        if reply is None:
            raise Malformed("no answer")
        connections = reply["connections"]
        links = tuple(LinkState[connections[str(slot)]["status"]] for slot in range(size))
        return Node(entry, address, DaemonState[reply["state"]], str(reply["version"]), links)
    except (Malformed, KeyError, TypeError):
        return Node(entry, address, DaemonState.UNAVAILABLE, "", (LinkState.INVALID,) * size)


def _query(loop: Loop, address: str, surroundings: Surroundings) -> Query | None:
    if not address or surroundings.network.get(address) == DROP:
        return None
    try:
        sock = begin_connection(surroundings.source, address, surroundings.port)
    except OSError:
        return None
    query = Query(loop, sock)
    query.start(connecting=True)
    return query
