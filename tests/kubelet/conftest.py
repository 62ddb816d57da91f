import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from tests.kubelet.api import Api
from tests.kubelet.console import Console
from tests.kubelet.implementations import HOLLOW, MAKERS, NODE_USERS, REAL, Kubelet
from tests.kubelet.stage import Stage


@pytest.fixture(scope="session")
def root() -> Iterator[Path]:
    """Sockets lie in it, so its path must be shorter than pytest's."""
    directory = Path(tempfile.mkdtemp(prefix="ix", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def cluster(root: Path) -> Iterator[ControlPlane]:
    with ControlPlane(root / "cp", users=NODE_USERS) as running:
        yield running


@pytest.fixture(scope="session")
def api(cluster: ControlPlane) -> Iterator[Api]:
    connected = Api(cluster)
    yield connected
    connected.close()


@pytest.fixture(scope="session")
def console(cluster: ControlPlane) -> Console:
    return Console(cluster.kubeconfig())


@pytest.fixture(scope="session", params=[REAL, HOLLOW])
def kubelet(request: pytest.FixtureRequest, root: Path, cluster: ControlPlane) -> Iterator[Kubelet]:
    made = MAKERS[request.param](root, cluster)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def stage(api: Api, kubelet: Kubelet) -> Iterator[Stage]:
    made = Stage(api, kubelet)
    yield made
    made.clear()
