import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from imex_dra.kube.client import Client
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.faultproxy import FaultProxy


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl("create", "namespace", name)
    return name


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    connected = Client.connect("imex-controller", control_plane.kubeconfig())
    yield connected
    await connected.close()


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(control_plane.url, control_plane.authority.certificate) as running:
        yield running


@pytest.fixture
async def proxied_client(control_plane: ControlPlane, proxy: FaultProxy, tmp_path: Path) -> AsyncIterator[Client]:
    connected = Client.connect("imex-controller", proxy.kubeconfig(control_plane.kubeconfig(), tmp_path))
    yield connected
    await connected.close()
