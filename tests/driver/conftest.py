import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.driver.cluster import DriverCluster, running_cluster
from tests.driver.namespace import Namespace
from tests.sharedcluster import SHARED_CLUSTER


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> DriverCluster:
    return SHARED_CLUSTER.get(request, _started)


@contextmanager
def _started() -> Iterator[DriverCluster]:
    """In a directory whose path is short enough for unix sockets."""
    with (
        tempfile.TemporaryDirectory(prefix="imex-", dir="/tmp") as directory,
        running_cluster(Path(directory)) as running,
    ):
        yield running


@pytest.fixture
def nothing_stays_prepared(cluster: DriverCluster) -> Iterator[None]:
    """Fails a test that leaves a claim prepared."""
    yield
    cluster.until_nothing_prepared()


@pytest.fixture
def namespace(cluster: DriverCluster, nothing_stays_prepared: None) -> Iterator[Namespace]:
    yield from _temporary_namespace(cluster)


@pytest.fixture
def other_namespace(cluster: DriverCluster, nothing_stays_prepared: None) -> Iterator[Namespace]:
    yield from _temporary_namespace(cluster)


def _temporary_namespace(cluster: DriverCluster) -> Iterator[Namespace]:
    created = Namespace(cluster)
    yield created
    created.delete("pods,resourceclaims,computedomains", "--all")
    cluster.kubectl("delete", "namespace", created.name, "--wait=false")
