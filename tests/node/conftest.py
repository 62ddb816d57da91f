from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from imex_dra.kube.client import Client
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.proxy import Proxy
from tests.node.desk import Desk
from tests.node.scene import Scene


@pytest.fixture
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("node"))


@pytest.fixture
async def scene(control_plane: ControlPlane, desk: Desk) -> AsyncIterator[Scene]:
    admin = Client.connect("imex-node", control_plane.kubeconfig())
    yield await Scene(admin, desk).set_up()
    await admin.close()


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[Proxy]:
    async with Proxy(control_plane.url, control_plane.authority.certificate) as running:
        yield running


@pytest.fixture
async def far_client(control_plane: ControlPlane, proxy: Proxy, tmp_path: Path) -> AsyncIterator[Client]:
    """A client at the far end of the proxy."""
    connected = Client.connect("imex-node", proxy.kubeconfig(control_plane.kubeconfig(), tmp_path))
    yield connected
    await connected.close()
