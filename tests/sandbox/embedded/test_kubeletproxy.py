"""Logs and commands in containers, through the API server, from a kubelet that the test plays."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from imex_sandbox.kubernetes.certificates import Authority
from imex_sandbox.kubernetes.embedded import EmbeddedControlPlane
from tests.sandbox.embedded.conftest import MERGE_PATCH, Api, connected
from tests.sandbox.embedded.test_builtin import create_pod


class FakeKubelet:
    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.port = 0

    async def log(self, request: web.Request) -> web.Response:
        self.requests.append((request.path, dict(request.query)))
        if request.match_info["container"] == "main":
            return web.Response(text="one\ntwo\n")
        raise web.HTTPBadRequest(text="no log here")

    async def exec(self, request: web.Request) -> web.WebSocketResponse:
        """Answers with the command on stdout (channel 1), and success (channel 3)."""
        self.requests.append((request.path, dict(request.query)))
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        await socket.send_bytes(b"\x01" + " ".join(request.query.getall("command")).encode())
        await socket.send_bytes(b'\x03{"metadata":{},"status":"Success"}')
        await socket.close()
        return socket


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[FakeKubelet]:
    fake = FakeKubelet()
    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", fake.log)
    application.router.add_get("/exec/{namespace}/{pod}/{container}", fake.exec)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0)
    await runner.setup()
    certificate = Authority(tmp_path).server("kubelet", ["IP:127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    fake.port = runner.addresses[0][1]
    yield fake
    await stop(runner)


async def stop(runner: web.BaseRunner) -> None:
    """Without waiting for the end of TLS: the event loop of a test may be closed before the client answers."""
    assert runner.server is not None
    for connection in runner.server.connections:
        if connection.transport is not None:
            connection.transport.abort()
    await asyncio.sleep(0)  # here the sockets are closed
    await runner.cleanup()


async def bind(server: Api, kubelet: FakeKubelet, **spec: Any) -> str:
    """A pod on a node with this kubelet; its path."""
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
    }
    node = server.namespace
    await server.request("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    await server.request("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, MERGE_PATCH)
    await create_pod(server, nodeName=node, **spec)
    return server.path("pods", "x", group="v1")


async def test_the_log_of_a_container_comes_from_its_kubelet(server: Api, kubelet: FakeKubelet) -> None:
    path = await bind(server, kubelet)
    code, text = await server.request("GET", f"{path}/log", tailLines="2")
    assert (code, text) == (200, "one\ntwo\n")
    ((asked, query),) = kubelet.requests
    assert asked == f"/containerLogs/{server.namespace}/x/main"
    assert query == {"tailLines": "2"}


async def test_one_of_several_containers_must_be_named(server: Api, kubelet: FakeKubelet) -> None:
    containers = [{"name": name, "image": "registry.example/app:1"} for name in ("main", "other")]
    path = await bind(server, kubelet, containers=containers)
    code, status = await server.request("GET", f"{path}/log")
    assert (code, status["reason"]) == (400, "BadRequest")
    assert "a container name must be specified for pod x, choose one of: [main other]" in status["message"]
    code, status = await server.request("GET", f"{path}/log", container="third")
    assert (code, status["message"]) == (400, "container third is not valid for pod x")
    code, status = await server.request("GET", f"{path}/log", container="other")
    assert (code, status["message"]) == (400, "no log here")


async def test_a_command_runs_through_the_kubelet(
    embedded_control_plane: EmbeddedControlPlane, kubelet: FakeKubelet, request: pytest.FixtureRequest
) -> None:
    """Only here: a real API server does this over WebSockets for some nodes only."""
    async with connected(request, "embedded") as server:
        await bind(server, kubelet)
        words = ["exec", "x", f"--namespace={server.namespace}", "--", "echo", "hello"]
        argv = ["kubectl", f"--kubeconfig={embedded_control_plane.kubeconfig()}", *words]
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "echo hello"), done.stderr
        assert kubelet.requests[0][0] == f"/exec/{server.namespace}/x/main"


async def test_a_page_of_another_port_of_a_node_is_passed_on(
    embedded_control_plane: EmbeddedControlPlane, kubelet: FakeKubelet, request: pytest.FixtureRequest
) -> None:
    """Only here: a real API server refuses loopback addresses."""

    async def page(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="READY\n")

    runner = web.ServerRunner(web.Server(page, access_log=None), shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    async with connected(request, "embedded") as server:
        await bind(server, kubelet)
        path = f"/api/v1/nodes/{server.namespace}"
        assert await server.request("GET", f"{path}:{port}/proxy/imex") == (200, "READY\n")
        await stop(runner)
        code, status = await server.request("GET", f"{path}:{port}/proxy/imex")
        assert (code, status["message"].partition(":")[0]) == (503, "error trying to reach service")
