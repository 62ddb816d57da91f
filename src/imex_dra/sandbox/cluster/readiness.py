"""When a cluster is ready: every node is, and with a driver every node offers seats."""

import asyncio
from collections.abc import Collection
from pathlib import Path

from imex_dra.api.meta import ObjectMeta, Resource, View
from imex_dra.api.names import DRIVER
from imex_dra.api.views import RESOURCE_SLICES
from imex_dra.base.errors import NotYet, Retryable
from imex_dra.kube.client import Client

_LOOK = 0.25


class Taint(View, frozen=True):
    key: str


class NodeSpec(View, frozen=True):
    taints: tuple[Taint, ...] = ()


class Node(View, frozen=True):
    """Without the taint `not-ready`, which the control plane takes away from a node that is."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()


NODES = Resource(Node, "", "v1", "nodes", namespaced=False)


def obstacle(expected: Collection[str], nodes: Collection[Node], seated: Collection[str] | None) -> str:
    """What is missing, in words; empty when nothing is. `seated`: nodes with a slice; None: nobody wants any."""
    untainted = {node.metadata.name for node in nodes if not node.spec.taints}
    if missing := sorted(set(expected) - untainted):
        return f"{len(missing)} of {len(expected)} nodes are not Ready, {missing[0]} among them"
    if seated is not None and (missing := sorted(set(expected) - set(seated))):
        return f"{len(missing)} of {len(expected)} nodes offer no seats, {missing[0]} among them"
    return ""


async def until_ready(kubeconfig: Path, expected: Collection[str], *, driver: bool, within: float) -> None:
    client = Client.connect("imex-sandbox", kubeconfig)
    lacking = "the API server does not answer"
    try:
        async with asyncio.timeout(within):
            while lacking:
                try:
                    lacking = obstacle(
                        expected, await client.list(NODES), await _seated(client) if driver else None
                    )
                except Retryable as error:
                    lacking = str(error)
                await asyncio.sleep(_LOOK if lacking else 0)
    except TimeoutError:
        raise NotYet(f"after {within:.0f} s {lacking}") from None
    finally:
        await client.close()


async def _seated(client: Client) -> set[str]:
    return {found.spec.node_name for found in await client.list(RESOURCE_SLICES) if found.spec.driver == DRIVER}
