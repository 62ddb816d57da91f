"""The API server as the suite uses it: whole objects over plain HTTP, without the client under test."""

import ssl
from typing import Any

import httpx2

from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.identities import ADMIN

NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class Api:
    def __init__(self, control_plane: ControlPlane) -> None:
        self._http = httpx2.Client(
            base_url=control_plane.url,
            headers={"Authorization": f"Bearer {control_plane.identities.token(ADMIN)}"},
            verify=ssl.create_default_context(cafile=control_plane.authority.certificate),
            trust_env=False,
            timeout=30,
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **query: str) -> Any:
        return self._send("GET", path, params=query)

    def find(self, path: str) -> Any | None:
        """None if the object does not exist."""
        response = self._http.get(path)
        return None if response.status_code == 404 else _body(response)

    def items(self, path: str, **query: str) -> list[Any]:
        return list(self.get(path, **query)["items"])

    def create(self, path: str, document: dict[str, Any]) -> Any:
        return self._send("POST", path, json=document)

    def patch(self, path: str, change: dict[str, Any]) -> Any:
        return self._send("PATCH", path, json=change, headers={"Content-Type": "application/merge-patch+json"})

    def delete(self, path: str, *, grace: int | None = None) -> None:
        """Succeeds if the object does not exist."""
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        response = self._http.request(
            "DELETE", path, json={"kind": "DeleteOptions", "apiVersion": "v1", **options}
        )
        if response.status_code != 404:
            _body(response)

    def _send(self, method: str, path: str, **options: Any) -> Any:
        return _body(self._http.request(method, path, **options))


def _body(response: httpx2.Response) -> Any:
    assert response.is_success, f"{response.request.method} {response.request.url.path}: {response.text}"
    return response.json()
