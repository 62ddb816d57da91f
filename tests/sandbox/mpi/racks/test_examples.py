"""The small examples, applied without changes. The MPIJob is tested in test_mpijob.py."""

import re
from collections.abc import Iterator

import pytest

from imex_sandbox.cluster.handle import Cluster
from tests.paths import EXAMPLES
from tests.sandbox.cluster.namespace import Namespace, until

pytestmark = [pytest.mark.racks, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    made = Namespace(cluster)
    yield made
    made.delete_all()


def test_the_template_of_a_compute_domain_is_created(cluster: Cluster, namespace: Namespace) -> None:
    namespace.kubectl("apply", "-f", str(EXAMPLES / "compute-domain"))
    until(
        cluster,
        lambda: bool(namespace.kubectl("get", "resourceclaimtemplate", "imex-channel-0", "--ignore-not-found")),
    )
    assert namespace.get("computedomain", "my-workload")["spec"]["numNodes"] == 0


def test_only_the_container_of_the_minimal_pod_that_claims_the_channel_has_it(
    cluster: Cluster, namespace: Namespace
) -> None:
    namespace.kubectl("apply", "-f", str(EXAMPLES / "minimal-pod"))
    namespace.until_ready("minimal")
    assert namespace.kubectl("get", "resourceclaims", "--no-headers").split()[1] == "allocated,reserved"
    until(
        cluster,
        lambda: re.fullmatch(r"channel\d+\n", namespace.kubectl("logs", "minimal", "-c", "main")) is not None,
    )
    until(cluster, lambda: "No such file" in namespace.kubectl("logs", "minimal", "-c", "sidecar"))
    until(cluster, lambda: namespace.ready_nodes("minimal") == "1/1")
