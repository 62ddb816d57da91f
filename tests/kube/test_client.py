"""Requests and what comes back, on a real API server and over a bad line."""

import asyncio
import socket
from pathlib import Path

import pytest
import yaml

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import Key, ObjectMeta
from imex_dra.api.views import LEASES, NAMESPACES, Lease, LeaseSpec
from imex_dra.base.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    Misconfigured,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from imex_dra.kube.client import Client
from imex_dra.kube.connection import connect
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.proxy import Proxy

pytestmark = pytest.mark.kube


def lease(namespace: str, name: str) -> Lease:
    return Lease(ObjectMeta(name=name, namespace=namespace), LeaseSpec(holder_identity="a"))


async def test_what_is_not_there(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound, match=r'leases\.coordination\.k8s\.io "x" not found'):
        await client.get(LEASES, Key(namespace, "x"))


async def test_what_is_there_already(client: Client, namespace: str) -> None:
    await client.create(LEASES, lease(namespace, "x"))
    with pytest.raises(AlreadyExists):
        await client.create(LEASES, lease(namespace, "x"))


async def test_a_patch_of_an_old_version(client: Client, namespace: str) -> None:
    old = await client.create(LEASES, lease(namespace, "x"))
    patch = {"metadata": {"resourceVersion": old.metadata.resource_version}, "spec": {"holderIdentity": "b"}}
    await client.patch(LEASES, Key(namespace, "x"), patch)
    with pytest.raises(Conflict, match="modified"):
        await client.patch(LEASES, Key(namespace, "x"), patch)


async def test_a_wrong_value_is_named_by_its_path(client: Client, namespace: str) -> None:
    body = {"apiVersion": COMPUTE_DOMAINS.api_version, "kind": "ComputeDomain", "spec": {"numNodes": -1}}
    with pytest.raises(Invalid, match=r"spec\.numNodes"):
        await client.patch(
            COMPUTE_DOMAINS,
            Key(namespace, "x"),
            {**body, "metadata": {"name": "x"}},
            content_type="application/apply-patch+yaml",
            fieldManager="test",
        )


async def test_who_may_not(control_plane: ControlPlane, namespace: str) -> None:
    nobody = Client.connect("imex-cli", control_plane.kubeconfig("nobody"))
    with pytest.raises(Forbidden, match='User "nobody" cannot get resource "leases"'):
        await nobody.get(LEASES, Key(namespace, "x"))
    await nobody.close()


async def test_delete_spares_a_namesake_that_came_later(client: Client, namespace: str) -> None:
    first = await client.create(LEASES, lease(namespace, "x"))
    await client.delete(LEASES, first)
    await client.create(LEASES, lease(namespace, "x"))
    with pytest.raises(Conflict, match="UID in the precondition"):
        await client.delete(LEASES, first)
    assert (await client.get(LEASES, Key(namespace, "x"))).spec.holder_identity == "a"


async def test_too_many_requests_are_sent_again_when_the_server_says(far_client: Client, proxy: Proxy) -> None:
    proxy.answer(429, times=2, retry_after="0")
    created = await far_client.create(LEASES, lease("default", f"busy-{id(proxy)}"))
    assert created.metadata.uid
    assert len(proxy.requests) == 3


async def test_retry_after_is_kept_and_patience_ends(far_client: Client, proxy: Proxy) -> None:
    proxy.answer(429, times=1, retry_after="1")
    start = asyncio.get_running_loop().time()
    await far_client.list(NAMESPACES)
    assert asyncio.get_running_loop().time() - start >= 1.0
    proxy.answer(429, times=10, retry_after="0")
    with pytest.raises(TooManyRequests, match="told to say 429"):
        await far_client.list(NAMESPACES)


async def test_a_read_is_tried_again_and_a_write_is_not(far_client: Client, proxy: Proxy) -> None:
    proxy.answer(503, times=2)
    assert await far_client.list(NAMESPACES)
    assert len(proxy.requests) == 3
    proxy.requests.clear()
    proxy.answer(503)
    with pytest.raises(Unavailable, match="told to say 503"):
        await far_client.create(LEASES, lease("default", "unsure"))
    assert len(proxy.requests) == 1


async def test_a_server_that_is_not_there_is_named(tmp_path: Path, control_plane: ControlPlane) -> None:
    async with Proxy(control_plane.url, control_plane.authority.certificate) as proxy:
        nowhere = Client.connect("imex-cli", proxy.kubeconfig(control_plane.kubeconfig(), tmp_path))
    with pytest.raises(Unavailable, match=r"GET /api/v1/namespaces: no answer from 127\.0\.0\.1"):
        await nowhere.list(NAMESPACES)
    await nowhere.close()


async def test_over_ipv6(tmp_path: Path, control_plane: ControlPlane) -> None:
    async with Proxy(control_plane.url, control_plane.authority.certificate, address="::1") as proxy:
        client = Client.connect("imex-cli", proxy.kubeconfig(control_plane.kubeconfig(), tmp_path))
        assert await client.list(NAMESPACES)
        await client.close()
        assert proxy.address.startswith("http://[::1]:")


async def test_in_a_pod_the_token_file_is_read_again_when_it_was_rotated(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = yaml.safe_load(control_plane.kubeconfig().read_text())
    token = config["users"][0]["user"]["token"]
    (tmp_path / "token").write_text("expired")
    (tmp_path / "namespace").write_text("imex-dra")
    (tmp_path / "ca.crt").write_bytes(control_plane.authority.certificate.read_bytes())
    host, port = control_plane.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr("imex_dra.kube.connection.SERVICE_ACCOUNT", str(tmp_path))
    client = Client.connect("imex-node")
    with pytest.raises(Forbidden):
        await client.list(NAMESPACES)
    (tmp_path / "token").write_text(token)
    assert await client.list(NAMESPACES)
    await client.close()


async def test_in_a_pod_of_an_ipv6_cluster(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("token", "t"), ("namespace", "imex-dra")):
        (tmp_path / name).write_text(content)
    (tmp_path / "ca.crt").write_bytes(control_plane.authority.certificate.read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr("imex_dra.kube.connection.SERVICE_ACCOUNT", str(tmp_path))
    http = connect("imex-node")
    assert (http.base_url.host, http.base_url.raw_host) == ("fd00::1", b"fd00::1")
    await http.aclose()


async def test_outside_a_cluster_the_environment_names_the_file(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig()))
    client = Client.connect("imex-cli")
    assert await client.list(NAMESPACES)
    await client.close()


async def test_connections_send_at_once_and_notice_a_server_that_vanished(control_plane: ControlPlane) -> None:
    http = connect("imex-node", control_plane.kubeconfig())
    response = await http.get("/version")
    line = response.extensions["network_stream"].get_extra_info("socket")
    options = (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert [line.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [1, 10, 2, 3]
    await http.aclose()


def test_no_configuration_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(
        Misconfigured, match="no usable cluster configuration in the pod's service account or KUBECONFIG"
    ):
        Client.connect("imex-cli")
    with pytest.raises(Misconfigured, match="absent not found"):
        Client.connect("imex-cli", tmp_path / "absent")
