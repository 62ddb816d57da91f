"""A pod's Event explains why its claim was not prepared: at once if waiting cannot help, else at the deadline."""

import re
import uuid

import pytest

from imex_dra.api.nvlinknode import Fabric, FabricState
from tests.driver.cluster import PARTITION_A, PREPARE_DEADLINE, DriverCluster
from tests.driver.namespace import Namespace

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

CONFIG = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig"}


def waited_seconds(message: str) -> int:
    """How long the prepare waited, according to its message; 0 if it did not wait."""
    found = re.search(r"\(waited (\d+) s\)", message)
    return int(found[1]) if found else 0


def test_the_computedomain_does_not_exist(namespace: Namespace) -> None:
    uid = str(uuid.uuid4())
    namespace.create_claim("orphan", {**CONFIG, "domainID": uid})
    namespace.create_pod("p", "a0", claim="orphan")
    assert (
        f"claim {namespace.name}/orphan names ComputeDomain {uid}, but namespace {namespace.name} has no"
        " ComputeDomain with this UID"
    ) in namespace.prepare_error("p")
    assert namespace.prepare_seconds("a0", "orphan") < PREPARE_DEADLINE


def test_the_computedomain_is_in_another_namespace(namespace: Namespace, other_namespace: Namespace) -> None:
    uid = other_namespace.create_domain("private")
    other_namespace.create_pod("owner", "a0", template="private")
    other_namespace.until_running("owner")
    namespace.create_claim("intruder", {**CONFIG, "domainID": uid})
    namespace.create_pod("p", "a0", claim="intruder")
    message = namespace.prepare_error("p")
    assert f"claim {namespace.name}/intruder names ComputeDomain {uid}, which is in another namespace" in message
    assert namespace.prepare_seconds("a0", "intruder") < PREPARE_DEADLINE


def test_the_config_has_an_unknown_field(namespace: Namespace) -> None:
    uid = namespace.create_domain("typo")
    namespace.create_claim("misspelled", {**CONFIG, "domainID": uid, "alocationMode": "All"})
    namespace.create_pod("p", "a0", claim="misspelled")
    message = namespace.prepare_error("p")
    assert "unknown field `alocationMode`" in message
    assert f"claim {namespace.name}/misspelled" in message
    assert namespace.prepare_seconds("a0", "misspelled") < PREPARE_DEADLINE


def test_all_channels_are_refused_until_an_administrator_labels_the_namespace(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    channel = {"resourceClaimTemplate": {"name": "all"}, "allocationMode": "All"}
    uid = namespace.create_domain("all", channel=channel)
    cluster.until(lambda: namespace.condition("all", "Accepted").get("status") == "False")
    namespace.create_pod("p", "a1", template="all")
    message = namespace.prepare_error("p")
    assert f"ComputeDomain {namespace.name}/all requests allocationMode All" in message
    (claim,) = [claim["metadata"]["name"] for claim in namespace.claims()]
    assert namespace.prepare_seconds("a1", claim) < PREPARE_DEADLINE
    cluster.kubectl("label", "namespace", namespace.name, "imex-dra.io/all-channels=allowed")
    cluster.until(lambda: cluster.assigned_channel(uid) is not None)
    namespace.until_running_after_failure("p")
    assert len(namespace.channels_in("p")) == 2048


def test_the_controller_does_not_run(cluster: DriverCluster, namespace: Namespace) -> None:
    namespace.create_domain("waiting")
    with cluster.without_controller():
        namespace.create_pod("p", "a0", template="waiting")
        message = namespace.prepare_error("p")
    assert (
        f"ComputeDomain {namespace.name}/waiting has no channel in NVLink partition {PARTITION_A} yet" in message
    )
    assert "kubectl -n imex-dra get lease imex-controller" in message
    assert waited_seconds(message) >= PREPARE_DEADLINE
    namespace.until_running_after_failure("p")


def test_the_imex_daemon_is_not_ready(cluster: DriverCluster, namespace: Namespace) -> None:
    namespace.create_domain("stuck")
    daemon = cluster.drivers["a1"].supervisor
    with cluster.without_kubelet("a1"):
        namespace.create_pod("p", "a1", template="stuck")
        cluster.until(lambda: namespace.get("pod", "p")["spec"].get("nodeName"))
        daemon.stop()
        # Until it has noticed, `imex node` would prepare the claim.
        cluster.until(lambda: cluster.node_status("a1").get("imexState") == "UNAVAILABLE")
    try:
        message = namespace.prepare_error("p")
    finally:
        daemon.start()
    assert "the IMEX daemon of node a1 is UNAVAILABLE, not READY" in message
    assert "delete the pod to reschedule it" in message
    assert waited_seconds(message) >= PREPARE_DEADLINE
    cluster.until_published("a1")
    namespace.until_running_after_failure("p")


def test_the_fabric_is_broken(cluster: DriverCluster, namespace: Namespace) -> None:
    namespace.create_domain("broken")
    with cluster.without_kubelet("a1"):
        namespace.create_pod("p", "a1", template="broken")
        cluster.until(lambda: namespace.get("pod", "p")["spec"].get("nodeName"))
        cluster.write_hardware("a1", fabric=Fabric(FabricState.BROKEN, "GPU 2 reports route unhealthy"))
        cluster.until(lambda: cluster.node_status("a1").get("fabric", {}).get("state") == "broken")
    try:
        message = namespace.prepare_error("p")
    finally:
        cluster.write_hardware("a1")
    assert "a1: the NVLink fabric is broken (GPU 2 reports route unhealthy)" in message
    assert waited_seconds(message) == 0
    cluster.until_published("a1")
    namespace.until_running_after_failure("p")


@pytest.mark.slow
def test_with_the_default_deadline_the_error_arrives_before_the_kubelet_gives_up(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    """After 45 s the kubelet would report "context deadline exceeded" instead of the driver's message."""
    driver = cluster.drivers["a1"]
    registrations = cluster.registrations("a1")
    default = driver.node_program("imex-node-default", flags=())
    driver.program.stop()
    default.start()
    try:
        cluster.until(lambda: cluster.registrations("a1") > registrations)
        cluster.until_published("a1")
        namespace.create_domain("waiting")
        with cluster.without_controller():
            namespace.create_pod("p", "a1", template="waiting")
            message = namespace.prepare_error("p")
        domain = f"{namespace.name}/waiting"
        assert f"ComputeDomain {domain} has no channel in NVLink partition {PARTITION_A} yet" in message
        assert 40 <= waited_seconds(message) < 45
        namespace.delete("pod", "p")
        cluster.until_nothing_prepared()
    finally:
        default.stop()
        driver.program.start()
    cluster.until(lambda: cluster.registrations("a1") > registrations + 1)


def test_the_computedomain_is_deleted_while_a_prepare_waits(cluster: DriverCluster, namespace: Namespace) -> None:
    namespace.create_domain("short-lived")
    with cluster.without_controller():
        # Before the prepare begins: of its deadline there must be enough left for the deletion.
        patch = '-p={"metadata":{"finalizers":null}}'
        namespace.kubectl("patch", "computedomain", "short-lived", "--type=merge", patch)
        namespace.create_pod("p", "a0", template="short-lived")
        cluster.until(namespace.claims)
        (claim,) = [claim["metadata"]["name"] for claim in namespace.claims()]
        cluster.until(lambda: cluster.logged_at("a0", "preparing", f"{namespace.name}/{claim}"))
        namespace.kubectl("delete", "computedomain", "short-lived")
        message = namespace.prepare_error("p")
    assert f"namespace {namespace.name} has no ComputeDomain with this UID: it was deleted or recreated" in message
