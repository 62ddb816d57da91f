"""A user with all permissions in one namespace and none elsewhere, who writes objects that decoders refuse."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec

from imex_dra.kube.connection import connect
from imex_sandbox.kubernetes.controlplane import ControlPlane

USER = "unprivileged"
_RBAC = "rbac.authorization.k8s.io"
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
_TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates"
_DOMAINS = "/apis/resource.nvidia.com/v1beta1/namespaces/{}/computedomains"


class HostileUser:
    def __init__(self, http: httpx2.AsyncClient, namespace: str) -> None:
        self._http = http
        self.namespace = namespace

    async def create_claim(self, body: bytes) -> None:
        await self._send("POST", _CLAIMS, body)

    async def create_template(self, body: bytes) -> None:
        await self._send("POST", _TEMPLATES, body)

    async def label_claim(self, name: str, value: str) -> None:
        patch = msgspec.json.encode({"metadata": {"labels": {"changed": value}}})
        await self._send("PATCH", _CLAIMS + f"/{name}", patch)

    async def create_domain(self, name: str, **metadata: Any) -> None:
        kind = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain"}
        body = kind | {"metadata": {"name": name, **metadata}, "spec": {}}
        await self._send("POST", _DOMAINS, msgspec.json.encode(body))

    async def write_domain_status(self, name: str, status: bytes) -> int:
        """Returns the HTTP status: whether the API server accepts it."""
        response = await self._request("PATCH", _DOMAINS + f"/{name}/status", b'{"status":%s}' % status)
        return response.status_code

    async def delete_everything(self) -> None:
        for path in (_CLAIMS, _TEMPLATES, _DOMAINS):
            await self._send("DELETE", path)

    async def _send(self, method: str, path: str, body: bytes = b"") -> None:
        response = await self._request(method, path, body)
        assert response.is_success, response.text[:500]

    async def _request(self, method: str, path: str, body: bytes) -> httpx2.Response:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": kind}
        return await self._http.request(method, path.format(self.namespace), content=body, headers=headers)


@asynccontextmanager
async def hostile_user(control_plane: ControlPlane, namespace: str) -> AsyncIterator[HostileUser]:
    """In a new namespace; its objects are deleted at the end."""
    control_plane.kubectl("create", "namespace", namespace)
    control_plane.kubectl.apply(*_permissions(namespace))
    async with connect("hostile", control_plane.kubeconfig(USER)) as http:
        user = HostileUser(http, namespace)
        yield user
        await user.delete_everything()


def _permissions(namespace: str) -> list[dict[str, Any]]:
    metadata = {"name": "everything", "namespace": namespace}
    groups = ["resource.k8s.io", "resource.nvidia.com"]
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [{"apiGroups": groups, "resources": ["*"], "verbs": ["*"]}],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "subjects": [{"kind": "User", "name": USER, "apiGroup": _RBAC}],
            "roleRef": {"kind": "Role", "name": "everything", "apiGroup": _RBAC},
        },
    ]
