import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from imex_dra.kube.client import Client
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.embedded import EmbeddedControlPlane
from tests.kube.faultproxy import FaultProxy

ApiServer = ControlPlane | EmbeddedControlPlane


@pytest.fixture(
    scope="session", params=[pytest.param("control_plane", marks=pytest.mark.kube), "embedded_control_plane"]
)
def api_server(request: pytest.FixtureRequest) -> ApiServer:
    """A real one first, then the embedded one."""
    found: ApiServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    name = f"test-{uuid.uuid4().hex[:8]}"
    api_server.kubectl("create", "namespace", name)
    return name


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[Client]:
    connected = Client.connect("imex-controller", api_server.kubeconfig())
    yield connected
    await connected.close()


@pytest.fixture
async def proxy(api_server: ApiServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(api_server.url, api_server.authority.certificate) as running:
        yield running


@pytest.fixture
async def proxied_client(api_server: ApiServer, proxy: FaultProxy, tmp_path: Path) -> AsyncIterator[Client]:
    connected = Client.connect("imex-controller", proxy.kubeconfig(api_server.kubeconfig(), tmp_path))
    yield connected
    await connected.close()
