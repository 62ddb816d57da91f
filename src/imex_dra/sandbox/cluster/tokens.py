"""Tokens of the driver's service accounts: one for the controller, one for each node, bound to it.

As a DaemonSet's pods have them. They come straight from the API server, many at once: a kubectl for each of 36
nodes would take longer than everything else.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from imex_dra.api.names import NAMESPACE
from imex_dra.base.errors import NotFound, Retryable
from imex_dra.kube.client import Client
from imex_dra.kube.connection import connect

CONTROLLER = "imex-controller"
NODE = "imex-node"
_SECONDS = 365 * 24 * 3600
"""Nobody renews them: a cluster that is left alone must not fail the next day."""
_AT_ONCE = 8
_RETRY = 0.1


class _Token(Struct):
    token: str


class _TokenRequest(Struct):
    status: _Token


class TokenDesk(Client):
    async def token(self, account: str, *, node: str = "") -> str:
        """Waits for the account, and for the node, to exist."""
        while True:
            try:
                return await self._token(account, node)
            except (NotFound, Retryable):
                await asyncio.sleep(_RETRY)

    async def _token(self, account: str, node: str) -> str:
        spec: dict[str, object] = {"audiences": [], "expirationSeconds": _SECONDS}
        if node:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        answer = await self._request("POST", path, content=msgspec.json.encode(body))
        return msgspec.json.decode(answer, type=_TokenRequest).status.token


async def issue(kubeconfig: Path, nodes: Sequence[str], *, within: float) -> dict[str, str]:
    """By node; raises TimeoutError."""
    desk = TokenDesk(connect("imex-sandbox", kubeconfig))
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(node: str) -> str:
        async with turn:
            return await desk.token(NODE, node=node)

    try:
        async with asyncio.timeout(within), asyncio.TaskGroup() as group:
            asked = {node: group.create_task(one(node)) for node in nodes}
        return {node: task.result() for node, task in asked.items()}
    finally:
        await desk.close()


async def controller(kubeconfig: Path) -> str:
    desk = TokenDesk(connect("imex-sandbox", kubeconfig))
    try:
        async with asyncio.timeout(60):
            return await desk.token(CONTROLLER)
    finally:
        await desk.close()
