"""Clients of a control plane with the RBAC rules and policies of the driver: its programs, and users."""

from contextlib import AsyncExitStack
from typing import Any

import httpx2
import msgspec

from imex_dra.api.names import DRIVER, NAMESPACE
from imex_dra.base.errors import ImexError
from imex_dra.kube.client import MERGE_PATCH, Client
from imex_sandbox.kubernetes.controlplane import ControlPlane

DOMAINS = "/apis/resource.nvidia.com/v1beta1/namespaces/{}/computedomains"
NVLINK_NODES = "/apis/imex-dra.io/v1alpha1/nvlinknodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"

Body = dict[str, Any]


class RawClient(Client):
    """Sends what a test writes, and returns the body and the warnings of the response."""

    async def post(self, path: str, body: Body, **parameters: str) -> Body:
        found: Body = msgspec.json.decode(
            await self._request("POST", path, content=msgspec.json.encode(body), params=parameters)
        )
        return found

    async def change(self, path: str, patch: Body, **parameters: str) -> Body:
        content, headers = msgspec.json.encode(patch), {"Content-Type": MERGE_PATCH}
        found: Body = msgspec.json.decode(
            await self._request("PATCH", path, content=content, headers=headers, params=parameters)
        )
        return found

    async def remove(self, path: str, **parameters: str) -> None:
        await self._request("DELETE", path, params=parameters)

    async def read(self, path: str) -> Body:
        found: Body = msgspec.json.decode(await self._request("GET", path))
        return found

    async def warnings(self, path: str, body: Body) -> list[str]:
        """Of a create that is not carried out."""
        parameters, content = {"dryRun": "All"}, msgspec.json.encode(body)
        response: httpx2.Response = await self._http.post(path, content=content, params=parameters)
        assert response.status_code == 201, response.text
        return response.headers.get_list("Warning")


class Guarded:
    """The clients of one test."""

    def __init__(self, control_plane: ControlPlane, stack: AsyncExitStack, namespace: str) -> None:
        self.control_plane, self.namespace = control_plane, namespace
        self._stack = stack
        self.admin = self.user("admin")
        self.domains, self.claims = DOMAINS.format(namespace), CLAIMS.format(namespace)

    def user(self, name: str) -> RawClient:
        return self._connected(RawClient.connect("test", self.control_plane.kubeconfig(name)))

    def account(self, name: str, node: str | None = None) -> RawClient:
        """With a token that is bound to the node, if one is given."""
        kubeconfig = self.control_plane.service_account(NAMESPACE, name, node=node)
        return self._connected(RawClient.connect(name, kubeconfig))

    def _connected(self, client: Client) -> RawClient:
        assert isinstance(client, RawClient)
        self._stack.push_async_callback(client.close)
        return client

    def domain(self, name: str, **annotations: str) -> Body:
        return {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomain",
            "metadata": {"name": name, "namespace": self.namespace, "annotations": annotations},
            "spec": {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": f"{name}-channel"}}},
        }


def nvlink_node(name: str) -> Body:
    return {"apiVersion": "imex-dra.io/v1alpha1", "kind": "NVLinkNode", "metadata": {"name": name}}


def resource_slice(name: str, node: str, *, driver: str = DRIVER, pool: str | None = None) -> Body:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "channel-0"}],
        },
    }


async def refusal(request: Any) -> str:
    """Why the API server refuses the request; empty if it does not."""
    try:
        await request
    except ImexError as error:
        return str(error)
    return ""
