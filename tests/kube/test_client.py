"""The client on a real API server and on the embedded one, directly and through the fault-injecting proxy."""

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
from tests.kube.conftest import ApiServer
from tests.kube.faultproxy import FaultProxy


def lease(namespace: str, name: str) -> Lease:
    return Lease(ObjectMeta(name=name, namespace=namespace), LeaseSpec(holder_identity="a"))


async def test_a_missing_object_is_not_found(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound, match=r'leases\.coordination\.k8s\.io "x" not found'):
        await client.get(LEASES, Key(namespace, "x"))


async def test_creating_an_existing_object_already_exists(client: Client, namespace: str) -> None:
    await client.create(LEASES, lease(namespace, "x"))
    with pytest.raises(AlreadyExists):
        await client.create(LEASES, lease(namespace, "x"))


async def test_a_patch_with_an_old_resource_version_conflicts(client: Client, namespace: str) -> None:
    old = await client.create(LEASES, lease(namespace, "x"))
    patch = {"metadata": {"resourceVersion": old.metadata.resource_version}, "spec": {"holderIdentity": "b"}}
    await client.patch(LEASES, Key(namespace, "x"), patch)
    with pytest.raises(Conflict, match="modified"):
        await client.patch(LEASES, Key(namespace, "x"), patch)


async def test_an_invalid_value_is_reported_with_its_path(client: Client, namespace: str) -> None:
    body = {"apiVersion": COMPUTE_DOMAINS.api_version, "kind": "ComputeDomain", "spec": {"numNodes": -1}}
    with pytest.raises(Invalid, match=r"spec\.numNodes"):
        await client.patch(
            COMPUTE_DOMAINS,
            Key(namespace, "x"),
            {**body, "metadata": {"name": "x"}},
            content_type="application/apply-patch+yaml",
            fieldManager="test",
        )


async def test_a_user_without_permission_is_forbidden(api_server: ApiServer, namespace: str) -> None:
    client = Client.connect("imex-cli", api_server.kubeconfig("unprivileged"))
    with pytest.raises(Forbidden, match='User "unprivileged" cannot get resource "leases"'):
        await client.get(LEASES, Key(namespace, "x"))
    await client.close()


async def test_delete_does_not_affect_a_recreated_object_of_the_same_name(client: Client, namespace: str) -> None:
    first = await client.create(LEASES, lease(namespace, "x"))
    await client.delete(LEASES, first)
    await client.create(LEASES, lease(namespace, "x"))
    with pytest.raises(Conflict, match="UID in the precondition"):
        await client.delete(LEASES, first)
    assert (await client.get(LEASES, Key(namespace, "x"))).spec.holder_identity == "a"


async def test_a_throttled_write_is_sent_again(proxied_client: Client, proxy: FaultProxy) -> None:
    proxy.answer(429, times=2, retry_after="0")
    created = await proxied_client.create(LEASES, lease("default", f"busy-{id(proxy)}"))
    assert created.metadata.uid
    assert len(proxy.requests) == 3


async def test_retry_after_is_honored_and_attempts_are_limited(proxied_client: Client, proxy: FaultProxy) -> None:
    proxy.answer(429, times=1, retry_after="1")
    start = asyncio.get_running_loop().time()
    await proxied_client.list(NAMESPACES)
    assert asyncio.get_running_loop().time() - start >= 1.0
    proxy.answer(429, times=10, retry_after="0")
    with pytest.raises(TooManyRequests, match="injected 429"):
        await proxied_client.list(NAMESPACES)


async def test_a_failed_read_is_retried_and_a_failed_write_is_not(
    proxied_client: Client, proxy: FaultProxy
) -> None:
    proxy.answer(503, times=2)
    assert await proxied_client.list(NAMESPACES)
    assert len(proxy.requests) == 3
    proxy.requests.clear()
    proxy.answer(503)
    with pytest.raises(Unavailable, match="injected 503"):
        await proxied_client.create(LEASES, lease("default", "not-retried"))
    assert len(proxy.requests) == 1


async def test_an_unreachable_server_is_named_in_the_error(tmp_path: Path, api_server: ApiServer) -> None:
    async with FaultProxy(api_server.url, api_server.authority.certificate) as proxy:
        unreachable = Client.connect("imex-cli", proxy.kubeconfig(api_server.kubeconfig(), tmp_path))
    with pytest.raises(Unavailable, match=r"GET /api/v1/namespaces: no response from 127\.0\.0\.1"):
        await unreachable.list(NAMESPACES)
    await unreachable.close()


async def test_a_server_with_an_ipv6_address(tmp_path: Path, api_server: ApiServer) -> None:
    async with FaultProxy(api_server.url, api_server.authority.certificate, address="::1") as proxy:
        client = Client.connect("imex-cli", proxy.kubeconfig(api_server.kubeconfig(), tmp_path))
        assert await client.list(NAMESPACES)
        await client.close()
        assert proxy.address.startswith("http://[::1]:")


async def test_in_a_pod_a_rotated_token_file_is_read_again(
    api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = yaml.safe_load(api_server.kubeconfig().read_text())
    token = config["users"][0]["user"]["token"]
    (tmp_path / "token").write_text("expired")
    (tmp_path / "namespace").write_text("imex-dra")
    (tmp_path / "ca.crt").write_bytes(api_server.authority.certificate.read_bytes())
    host, port = api_server.url.removeprefix("https://").split(":")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr("imex_dra.kube.connection.SERVICE_ACCOUNT", str(tmp_path))
    client = Client.connect("imex-node")
    with pytest.raises(Forbidden):
        await client.list(NAMESPACES)
    (tmp_path / "token").write_text(token)
    assert await client.list(NAMESPACES)
    await client.close()


async def test_in_a_pod_the_service_host_can_be_an_ipv6_address(
    api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("token", "t"), ("namespace", "imex-dra")):
        (tmp_path / name).write_text(content)
    (tmp_path / "ca.crt").write_bytes(api_server.authority.certificate.read_bytes())
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr("imex_dra.kube.connection.SERVICE_ACCOUNT", str(tmp_path))
    http = connect("imex-node")
    assert (http.base_url.host, http.base_url.raw_host) == ("fd00::1", b"fd00::1")
    await http.aclose()


async def test_the_kubeconfig_environment_variable_is_used(
    api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig()))
    client = Client.connect("imex-cli")
    assert await client.list(NAMESPACES)
    await client.close()


async def test_connections_use_nodelay_and_tcp_keepalive(api_server: ApiServer) -> None:
    http = connect("imex-node", api_server.kubeconfig())
    response = await http.get("/version")
    connection = response.extensions["network_stream"].get_extra_info("socket")
    options = (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert [connection.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [1, 10, 2, 3]
    await http.aclose()


def test_a_missing_configuration_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(Misconfigured, match=r"KUBECONFIG is .*absent, and there is no such file"):
        Client.connect("imex-cli")
    with pytest.raises(Misconfigured, match="absent: No such file"):
        Client.connect("imex-cli", tmp_path / "absent")
