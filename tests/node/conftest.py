from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from imex_dra.kube.client import Client
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.faultproxy import FaultProxy
from tests.node.disk import NodeDisk
from tests.node.prepare_fixture import PrepareFixture
from tests.node.publishing_node import PublishingNode


@pytest.fixture
def disk(tmp_path_factory: pytest.TempPathFactory) -> NodeDisk:
    return NodeDisk(tmp_path_factory.mktemp("node"))


@pytest.fixture
async def fixture(control_plane: ControlPlane, disk: NodeDisk) -> AsyncIterator[PrepareFixture]:
    admin = Client.connect("imex-node", control_plane.kubeconfig())
    created = PrepareFixture(admin, disk)
    await created.set_up()
    yield created
    await admin.close()


@pytest.fixture
async def publishing_node(control_plane: ControlPlane) -> AsyncIterator[PublishingNode]:
    client = Client.connect("imex-node", control_plane.kubeconfig())
    node = PublishingNode(client)
    await node.create()
    yield node
    await client.close()


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(control_plane.url, control_plane.authority.certificate) as running:
        yield running


@pytest.fixture
async def proxied_client(control_plane: ControlPlane, proxy: FaultProxy, tmp_path: Path) -> AsyncIterator[Client]:
    connected = Client.connect("imex-node", proxy.kubeconfig(control_plane.kubeconfig(), tmp_path))
    yield connected
    await connected.close()
