"""The kubelet shows the health of channel devices in the status of the pods that use them."""

import pytest

from imex_dra.api.nvlinknode import Fabric, FabricState
from tests.driver.cluster import DriverCluster
from tests.driver.namespace import Namespace
from tests.kubernetesversion import device_health as needs_device_health

pytestmark = [pytest.mark.node, pytest.mark.timeout(400), needs_device_health]


def device_health(namespace: Namespace, pod: str) -> tuple[str, str]:
    """Health and message of the pod's channel device; empty if its status does not say."""
    containers = namespace.get("pod", pod)["status"].get("containerStatuses", [])
    claims = [claim for container in containers for claim in container.get("allocatedResourcesStatus", [])]
    devices = [device for claim in claims for device in claim.get("resources", [])]
    return (devices[0].get("health", ""), devices[0].get("message", "")) if devices else ("", "")


def is_unhealthy_because(namespace: Namespace, pod: str, reason: str) -> bool:
    """Both at once: the first report of a failure may give another reason."""
    health, message = device_health(namespace, pod)
    return health == "Unhealthy" and reason in message


@pytest.fixture
def pod(cluster: DriverCluster, namespace: Namespace) -> str:
    """A running pod on node a0 whose device is healthy."""
    namespace.create_domain("train")
    namespace.create_pod("p", "a0", template="train")
    namespace.until_running("p")
    cluster.until(lambda: device_health(namespace, "p") == ("Healthy", ""))
    return "p"


def test_a_device_is_unhealthy_while_the_fabric_is_broken(
    cluster: DriverCluster, namespace: Namespace, pod: str
) -> None:
    with cluster.hardware("a0", fabric=Fabric(FabricState.BROKEN, "3 of 18 links are down")):
        reason = "a0: the NVLink fabric is broken (3 of 18 links are down)"
        cluster.until(lambda: is_unhealthy_because(namespace, pod, reason))
        assert namespace.get("pod", pod)["status"]["phase"] == "Running"
    cluster.until(lambda: device_health(namespace, pod) == ("Healthy", ""))
    cluster.until_published("a0")


def test_a_device_is_unhealthy_while_the_imex_daemon_does_not_answer(
    cluster: DriverCluster, namespace: Namespace, pod: str
) -> None:
    daemon = cluster.drivers["a0"].supervisor
    daemon.stop()
    try:
        reason = "the IMEX daemon of node a0 is UNAVAILABLE, not READY"
        cluster.until(lambda: is_unhealthy_because(namespace, pod, reason))
    finally:
        daemon.start()
    cluster.until(lambda: device_health(namespace, pod) == ("Healthy", ""))
    cluster.until_published("a0")
