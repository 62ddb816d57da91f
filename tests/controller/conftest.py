from collections.abc import AsyncIterator, Iterator

import pytest

from imex_dra.kube.client import Client
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.controller.cluster import Cluster
from tests.controller.processes import control_plane_for_controllers


@pytest.fixture
async def cluster(control_plane: ControlPlane) -> AsyncIterator[Cluster]:
    client = Client.connect("imex-controller", control_plane.kubeconfig())
    yield await Cluster(client).set_up()
    await client.close()


@pytest.fixture(scope="session")
def controllers_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane_for_controllers(tmp_path_factory.mktemp("controllers-plane")) as running:
        yield running


@pytest.fixture
async def controllers_cluster(controllers_plane: ControlPlane) -> AsyncIterator[Cluster]:
    client = Client.connect("test", controllers_plane.kubeconfig())
    yield await Cluster(client).set_up()
    await client.close()
