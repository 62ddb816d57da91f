from collections.abc import AsyncIterator

import pytest

from imex_dra.kube.client import Client
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from tests.controller.cluster import Cluster


@pytest.fixture
async def cluster(control_plane: ControlPlane) -> AsyncIterator[Cluster]:
    client = Client.connect("imex-controller", control_plane.kubeconfig())
    yield await Cluster(client).set_up()
    await client.close()
