"""The address on which the node's IMEX daemon listens, if none is given: an InternalIP of its Node.

The daemon uses the network of the host, so this address stays the same when a daemon restarts. A node with several
(dual stack) lists that of the cluster's first family first; all nodes of a partition must use the same family.
"""

import asyncio
from collections.abc import Callable
from ipaddress import ip_address

import structlog

from imex_dra.api import nodereasons
from imex_dra.api.meta import Key
from imex_dra.api.reasons import Explanation
from imex_dra.api.views import NODES, Node
from imex_dra.base.errors import ImexError
from imex_dra.kube.backoff import jittered
from imex_dra.kube.client import Client

log = structlog.get_logger()

FAMILIES = {"ipv4": 4, "ipv6": 6}
_KINDS = {"ipv4": "IPv4 address", "ipv6": "IPv6 address"}
_PERIOD = 5.0


def internal_address(node: Node, family: str = "") -> str:
    """In the form in which nvidia-imex compares it with those of its host; empty if there is none."""
    for entry in node.status.addresses:
        try:
            address = ip_address(entry.address)
        except ValueError:
            continue
        if entry.type == "InternalIP" and FAMILIES.get(family, address.version) == address.version:
            return str(address)
    return ""


async def find_address(
    client: Client,
    name: str,
    family: str = "",
    *,
    problem: Callable[[Explanation], None],
    period: float = _PERIOD,
) -> str:
    """Waits until the Node has one: a cloud provider may set it late. `problem` is told why it waits."""
    while True:
        try:
            found = internal_address(await client.get(NODES, Key("", name)), family)
        except ImexError as error:
            log.warning("the Node cannot be read", error=str(error), retry_in=period)
        else:
            if found:
                log.info("the IMEX daemon listens on an address of the Node", address=found)
                return found
            missing = nodereasons.no_address(node=name, kind=_KINDS.get(family, "IP address"))
            log.warning(missing.message(), retry_in=period)
            problem(missing)
        await asyncio.sleep(jittered(period))
