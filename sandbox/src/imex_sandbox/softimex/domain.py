"""The IMEX domain as `nvidia-imex-ctl -n` and `-N` show it: query every node at once, and render the replies.

A node that does not reply in time is UNAVAILABLE and its row of the connectivity table is INVALID. What other
nodes report about it is never used in its place.
"""

import json
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from imex_sandbox.softimex import nodemap
from imex_sandbox.softimex.command import DaemonState
from imex_sandbox.softimex.errors import Malformed
from imex_sandbox.softimex.frames import Message
from imex_sandbox.softimex.loop import Loop
from imex_sandbox.softimex.noderoot import DROP
from imex_sandbox.softimex.peerstate import ConnectionState
from imex_sandbox.softimex.sockets import is_address, start_connect
from imex_sandbox.softimex.stream import Stream

LEGEND = """\
Connectivity Table Legend:
I - Invalid - Node wasn't reachable, no connection status available
N - Never Connected
R - Recovering - Connection was lost, but clean up has not yet been triggered.
D - Disconnected - Connection was lost, and clean up has been triggreed.
A - Authenticating - If GSSAPI enabled, client has initiated mutual authentication.
!V! - Version mismatch, communication disabled.
!M! - Node map mismatch, communication disabled.
C - Connected - Ready for operation
"""  # "triggreed" is NVIDIA's spelling


class DomainState(Enum):
    UP = "UP"
    DEGRADED = "DEGRADED"
    DOWN = "DOWN"


class Node(NamedTuple):
    host: str
    """The entry in the nodes config file: an address or a name."""
    address: str
    state: DaemonState
    version: str
    connections: tuple[ConnectionState, ...]


class Domain(NamedTuple):
    nodes: tuple[Node, ...]

    @property
    def state(self) -> DomainState:
        """UP if all nodes are ready and connected, DOWN if no node is ready, otherwise DEGRADED."""
        ready = [node.state is DaemonState.READY for node in self.nodes]
        if not any(ready):
            return DomainState.DOWN
        connections = [state for node in self.nodes for state in node.connections]
        connected = all(state is ConnectionState.CONNECTED for state in connections)
        return DomainState.UP if all(ready) and connected else DomainState.DEGRADED


class QueryNetwork(NamedTuple):
    """How to reach the command ports: the source address, names, network faults and the port."""

    source: str
    hosts: Mapping[str, str]
    faults: Mapping[str, float]
    port: int


class NodeQuery(Stream):
    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        super().__init__(loop, sock)
        self.reply: Message | None = None

    def on_open(self) -> None:
        self.send({"query": "node"})

    def on_message(self, message: Message, descriptor: int | None) -> None:
        self.reply = message
        self.close("reply received")

    def on_close(self, reason: str) -> None:
        return


def query_domain(entries: Sequence[str], network: QueryNetwork, seconds: float) -> Domain:
    loop = Loop()
    addresses = [nodemap.resolve(entry, network.hosts) or "" for entry in entries]
    queries = [_start_query(loop, address, network) for address in addresses]
    deadline = time.monotonic() + seconds
    while any(query and query.alive for query in queries) and time.monotonic() < deadline:
        loop.step(max(0.0, deadline - time.monotonic()))
    for query in queries:
        if query:
            query.close("timed out")
    loop.close()
    return Domain(
        tuple(
            parse_reply(entry, address, query.reply if query else None, len(entries))
            for entry, address, query in zip(entries, addresses, queries, strict=True)
        )
    )


def parse_reply(entry: str, address: str, reply: Message | None, size: int) -> Node:
    """A row of the table. An invalid reply counts as none."""
    try:
        if reply is None:
            raise Malformed("no reply")
        reported = reply["connections"]
        connections = tuple(ConnectionState[reported[str(index)]["status"]] for index in range(size))
        return Node(entry, address, DaemonState[reply["state"]], str(reply["version"]), connections)
    except (Malformed, KeyError, TypeError):
        return Node(entry, address, DaemonState.UNAVAILABLE, "", (ConnectionState.INVALID,) * size)


def _start_query(loop: Loop, address: str, network: QueryNetwork) -> NodeQuery | None:
    if not address or network.faults.get(address) == DROP:
        return None
    try:
        sock = start_connect(network.source, address, network.port)
    except OSError:
        return None
    query = NodeQuery(loop, sock)
    query.start(connecting=True)
    return query


def render_text(domain: Domain, now: datetime, local: str, names: Mapping[str, str] | None) -> str:
    """The text of `-N`. `local` is the queried node's address; `names` are the host names to show, by address."""
    hosts = [_host(node, names) for node in domain.nodes]
    width = max(15, *(len(host) for host in hosts))
    lines = [LEGEND, _timestamp(now), "Nodes:"]
    for index, (node, host) in enumerate(zip(domain.nodes, hosts, strict=True)):
        mark = "*" if node.address == local else "-"
        state = f"{node.state.name:<20} - Version: {node.version}"
        lines.append(f"Node #{index:<4}{mark} {host:<{width}} {mark} {state}".rstrip())
    header = "".join(f"{index:<4}" for index in range(len(domain.nodes)))
    lines += ["", f" Nodes From\\To  {header}".rstrip()]
    for index, node in enumerate(domain.nodes):
        cells = "".join(f"{state.value:<4}" for state in node.connections)
        lines.append(f"{index:>8}        {cells}".rstrip())
    return "\n".join([*lines, "", f"Domain State: {domain.state.value}"])


def render_json(
    domain: Domain, now: datetime, names: Mapping[str, str] | None, before: Domain | None = None
) -> str:
    """The JSON of `-N -j`. `changed` compares with the domain before; in the first output, it is always true."""
    olds = before.nodes if before else [None] * len(domain.nodes)
    nodes = {
        str(index): _node_json(node, old, domain, names)
        for index, (node, old) in enumerate(zip(domain.nodes, olds, strict=True))
    }
    content = {"nodes": nodes, "timestamp": _timestamp(now), "status": domain.state.value}
    return json.dumps(content, indent=2)


def _node_json(node: Node, old: Node | None, domain: Domain, names: Mapping[str, str] | None) -> dict[str, Any]:
    connections = {
        str(index): {
            "host": domain.nodes[index].address,
            "status": state.name,
            "changed": old is None or old.connections[index] is not state,
        }
        for index, state in enumerate(node.connections)
    }
    return {
        "status": node.state.name,
        "host": node.host,
        "hostName": "" if names is None else _host_name(node, names) or "N/A",
        "version": node.version,
        "changed": old is None or (old.state, old.version) != (node.state, node.version),
        "connections": connections,
    }


def _host(node: Node, names: Mapping[str, str] | None) -> str:
    name = _host_name(node, names or {})
    return f"{node.host} ({name})" if name and name != node.host else node.host


def _host_name(node: Node, names: Mapping[str, str]) -> str:
    return names.get(node.address, "") if is_address(node.host) else node.host


def _timestamp(now: datetime) -> str:
    return f"{now.month}/{now.day}/{now.year} {now:%H:%M:%S}.{now.microsecond // 1000:03d}"
