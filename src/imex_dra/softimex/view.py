"""What `nvidia-imex-ctl -n` and `-N` print. Pure: a domain and a time in, text out."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from imex_dra.softimex.domain import Domain, Node
from imex_dra.softimex.nodemap import is_address

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
"""


def timestamp(now: datetime) -> str:
    return f"{now.month}/{now.day}/{now.year} {now:%H:%M:%S}.{now.microsecond // 1000:03d}"


def as_text(domain: Domain, now: datetime, local: str, names: Mapping[str, str] | None) -> str:
    """`local` is the address that was asked; `names` are host names by address, to be shown."""
    hosts = [_host(node, names) for node in domain.nodes]
    width = max(15, *(len(host) for host in hosts))
    lines = [LEGEND, timestamp(now), "Nodes:"]
    for slot, (node, host) in enumerate(zip(domain.nodes, hosts, strict=True)):
        mark = "*" if node.address == local else "-"
        state = f"{node.state.name:<20} - Version: {node.version}"
        lines.append(f"Node #{slot:<4}{mark} {host:<{width}} {mark} {state}".rstrip())
    header = "".join(f"{slot:<4}" for slot in range(len(domain.nodes)))
    lines += ["", f" Nodes From\\To  {header}".rstrip()]
    for slot, node in enumerate(domain.nodes):
        cells = "".join(f"{state.value:<4}" for state in node.links)
        lines.append(f"{slot:>8}        {cells}".rstrip())
    return "\n".join([*lines, "", f"Domain State: {domain.state.value}"])


def as_json(domain: Domain, now: datetime, names: Mapping[str, str] | None, before: Domain | None = None) -> str:
    """`changed` is said of what differs from the view before; in the first view everything is new."""
    olds = before.nodes if before else [None] * len(domain.nodes)
    nodes = {
        str(slot): _node(node, old, domain, names)
        for slot, (node, old) in enumerate(zip(domain.nodes, olds, strict=True))
    }
    content = {"nodes": nodes, "timestamp": timestamp(now), "status": domain.state.value}
    return json.dumps(content, indent=2)


def _node(node: Node, old: Node | None, domain: Domain, names: Mapping[str, str] | None) -> dict[str, Any]:
    connections = {
        str(slot): {
            "host": domain.nodes[slot].address,
            "status": state.name,
            "changed": old is None or old.links[slot] is not state,
        }
        for slot, state in enumerate(node.links)
    }
    return {
        "status": node.state.name,
        "host": node.host,
        "hostName": "" if names is None else _name(node, names) or "N/A",
        "version": node.version,
        "changed": old is None or (old.state, old.version) != (node.state, node.version),
        "connections": connections,
    }


def _host(node: Node, names: Mapping[str, str] | None) -> str:
    name = _name(node, names or {})
    return f"{node.host} ({name})" if name and name != node.host else node.host


def _name(node: Node, names: Mapping[str, str]) -> str:
    return names.get(node.address, "") if is_address(node.host) else node.host
