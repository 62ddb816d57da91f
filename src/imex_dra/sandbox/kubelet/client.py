"""Requests of many kubelets over one pool of connections, each under its own name.

A node may read only what concerns it, so each needs its own identity and its own watch of its own pods; one
watch for all would need an identity that no node has, and would deliver every pod to everybody. What they share
is the transport: one TLS context and one pool, the token goes with each request. Idle connections are then kept
once and not for each node. 200 nodes take 93 MB in all, 0.2 MB more for each.
"""

import ssl
from pathlib import Path

import httpx2
import msgspec
from msgspec import Struct

from imex_dra import __version__
from imex_dra.api.meta import Resource, T, key_of
from imex_dra.kube.client import Client, Selection
from imex_dra.sandbox.kubelet.views.pod import Pod

COMPONENT = "imex-sandbox-kubelet"
_TIMEOUT = httpx2.Timeout(15)
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=40)


class NodeClient(Client):
    async def delete_now(self, resource: Resource[T], obj: T) -> None:
        """Without grace: the node's word that nothing of a pod is left."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": obj.metadata.uid},
        }
        key = key_of(obj)
        await self._request("DELETE", resource.path(key.namespace, key.name), content=msgspec.json.encode(options))

    async def delete_all(self, resource: Resource[T], selection: Selection) -> None:
        await self._request("DELETE", resource.path(selection.namespace), params=selection.parameters())

    @property
    def server(self) -> tuple[str, int]:
        url = self._http.base_url
        return url.host, url.port or 443

    async def token(self, pod: Pod, audience: str, seconds: int) -> str:
        """Of the pod's service account, for as long as the pod lives."""
        meta = pod.metadata
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
        spec = {"audiences": [audience] if audience else [], "expirationSeconds": seconds, "boundObjectRef": bound}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{meta.namespace}/serviceaccounts/{pod.spec.service_account_name}/token"
        answer = await self._request("POST", path, content=msgspec.json.encode(body))
        return msgspec.json.decode(answer, type=_TokenRequest).status.token


class _Token(Struct):
    token: str


class _TokenRequest(Struct):
    status: _Token


class Switchboard:
    def __init__(self, server: str, authority: Path) -> None:
        self._server = server
        trust = ssl.create_default_context(cafile=authority)
        self._transport = httpx2.AsyncHTTPTransport(verify=trust, limits=_LIMITS, trust_env=False)

    def client(self, token: str, server: str = "") -> NodeClient:
        """`server`: another address than everybody's."""
        return NodeClient(
            httpx2.AsyncClient(
                base_url=server or self._server,
                transport=_Shared(self._transport),
                headers={"User-Agent": f"{COMPONENT}/{__version__}", "Authorization": f"Bearer {token}"},
                timeout=_TIMEOUT,
                trust_env=False,
            )
        )

    async def close(self) -> None:
        await self._transport.aclose()


class _Shared(httpx2.AsyncBaseTransport):
    """Stays open when one of its clients closes."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._transport.handle_async_request(request)
