"""API server clients of many kubelets over one connection pool, each with its own identity.

The node authorizer lets a node read only what concerns it, so each kubelet needs its own token and its own watch
on its own pods. One watch for all nodes would need an identity that no node has, and would deliver every pod to
every kubelet. The clients share one TLS context and one pool; the token is sent with each request. Idle
connections are then kept once and not per node: 200 nodes take 93 MB in all, 0.2 MB for each additional node.
"""

import ssl
from pathlib import Path

import httpx2
import msgspec
from msgspec import Struct

from imex_dra import __version__
from imex_dra.api.meta import Key, Resource, T, key_of
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.transport import Transport
from imex_sandbox.kubelet.views.pod import Pod
from imex_sandbox.kubelet.views.volume import CONFIG_MAPS, SECRETS

COMPONENT = "imex-sandbox-kubelet"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_TIMEOUT = httpx2.Timeout(15)
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=40)


class NodeClient(Client):
    @property
    def server(self) -> tuple[str, int]:
        url = self._http.base_url
        return url.host, url.port or 443

    async def delete_now(self, resource: Resource[T], obj: T) -> None:
        """Without a grace period: confirms that nothing of a terminating pod is left on the node."""
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

    async def config_map(self, namespace: str, name: str) -> dict[str, bytes]:
        found = await self.get(CONFIG_MAPS, Key(namespace, name))
        return {key: value.encode() for key, value in found.data.items()} | found.binary_data

    async def secret(self, namespace: str, name: str) -> dict[str, bytes]:
        return (await self.get(SECRETS, Key(namespace, name))).data

    async def service_account_token(self, pod: Pod, audience: str, seconds: int) -> str:
        """Bound to the pod: the token becomes invalid when the pod is deleted."""
        meta = pod.metadata
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
        spec = {"audiences": [audience] if audience else [], "expirationSeconds": seconds, "boundObjectRef": bound}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{meta.namespace}/serviceaccounts/{pod.spec.service_account_name}/token"
        response = await self._request("POST", path, content=msgspec.json.encode(body))
        return msgspec.json.decode(response, type=_TokenRequest).status.token


class _TokenRequestStatus(Struct):
    token: str


class _TokenRequest(Struct):
    status: _TokenRequestStatus


class ClientPool:
    def __init__(self, authority: Path) -> None:
        trust = ssl.create_default_context(cafile=authority)
        self._transport = Transport(verify=trust, limits=_LIMITS, trust_env=False)

    def client(self, server: str, token: str) -> NodeClient:
        return NodeClient(
            httpx2.AsyncClient(
                base_url=server,
                transport=_SharedTransport(self._transport),
                headers={"User-Agent": f"{COMPONENT}/{__version__}", "Authorization": f"Bearer {token}"},
                timeout=_TIMEOUT,
                trust_env=False,
            )
        )

    async def close(self) -> None:
        await self._transport.aclose()


class _SharedTransport(httpx2.AsyncBaseTransport):
    """Stays open when one of its clients is closed."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._transport.handle_async_request(request)
