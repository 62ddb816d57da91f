import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.kubernetesversion import is_older_than
from tests.sandbox.kubelet.api import Api
from tests.sandbox.kubelet.fixture import KubeletFixture
from tests.sandbox.kubelet.implementations import HOLLOW, IMPLEMENTATIONS, NODE_USERS, REAL, Kubelet
from tests.sandbox.kubelet.kubectl import Kubectl


@pytest.fixture(scope="session")
def root() -> Iterator[Path]:
    """Shorter than pytest's own directory, because the path of a Unix socket is limited to 107 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="ix", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def cluster(root: Path) -> Iterator[ControlPlane]:
    with ControlPlane(root / "cp", users=NODE_USERS) as running:
        yield running


@pytest.fixture(scope="session")
def api(cluster: ControlPlane) -> Iterator[Api]:
    api = Api(cluster)
    yield api
    api.close()


@pytest.fixture(scope="session", params=[REAL, HOLLOW])
def kubelet(request: pytest.FixtureRequest, root: Path, cluster: ControlPlane) -> Iterator[Kubelet]:
    kubelet = IMPLEMENTATIONS[request.param](root, cluster)
    kubelet.start()
    yield kubelet
    kubelet.stop()


@pytest.fixture(scope="session")
def kubectl(cluster: ControlPlane, kubelet: Kubelet) -> Kubectl:
    no_web_sockets = kubelet.name == "simulated" and is_older_than("1.36")
    reason = "the simulated kubelet speaks WebSocket, and API servers speak it to kubelets since Kubernetes 1.36"
    return Kubectl(cluster.kubeconfig(), without_exec=reason if no_web_sockets else "")


@pytest.fixture
def node(api: Api, kubelet: Kubelet) -> Iterator[KubeletFixture]:
    fixture = KubeletFixture(api, kubelet)
    yield fixture
    fixture.clean_up()
