"""Components that are killed or restarted at any time leak nothing, block nothing and do not change membership."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import pytest

from imex_dra.base.errors import Rejected
from tests.driver.cluster import PARTITION_A, DriverCluster
from tests.driver.namespace import Namespace

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def membership_is_unchanged(cluster: DriverCluster, namespace: Namespace) -> Iterator[None]:
    def membership() -> tuple[object, object]:
        return cluster.members(), cluster.partition()["status"]["generation"]

    cluster.until(
        lambda: cluster.is_connected(PARTITION_A) and {node for node, _, _ in cluster.members()} == {"a0", "a1"}
    )
    before = membership()
    yield
    cluster.until(lambda: cluster.summary().get("state") == "UP")
    assert membership() == before


def slices(cluster: DriverCluster, node: str) -> set[str]:
    """UIDs of the node's ResourceSlices. A kubelet that starts deletes them, and the driver creates new ones."""
    found = cluster.kubectl.get("resourceslices")["items"]
    return {each["metadata"]["uid"] for each in found if each["spec"]["nodeName"] == node}


def test_after_a_kubelet_restart_devices_and_claims_are_available_again(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    namespace.create_domain("train")
    namespace.create_pod("before", "a0", template="train")
    namespace.until_running("before")
    held, deleted = cluster.prepared_claims("a0"), slices(cluster, "a0")
    registrations = cluster.registrations("a0")
    with cluster.without_kubelet("a0"):
        pass
    cluster.until(lambda: slices(cluster, "a0") - deleted)
    cluster.until(lambda: cluster.registrations("a0") > registrations)
    namespace.create_pod("after", "a0", template="train")
    namespace.until_running("before", "after")
    assert held < cluster.prepared_claims("a0")
    assert namespace.channels_in("before") == namespace.channels_in("after")


def test_a_plugin_that_is_killed_during_a_prepare_has_prepared_nothing(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    uid = namespace.create_domain("train")
    with cluster.without_controller():
        namespace.create_pod("p", "a0", template="train")
        claim = waiting_claim(cluster, namespace)
        registrations = cluster.registrations("a0")
        program = cluster.drivers["a0"].program
        program.kill()
        assert program.wait(within=60)
        program.start()
        assert claim not in cluster.prepared_claims("a0")
    cluster.until(lambda: cluster.assigned_channel(uid) is not None)
    cluster.until(lambda: cluster.registrations("a0") > registrations)
    namespace.until_running_after_failure("p")
    assert namespace.channels_in("p") == [f"channel{cluster.assigned_channel(uid)}"]


def waiting_claim(cluster: DriverCluster, namespace: Namespace) -> str:
    """UID of the only allocated claim, when its prepare waits on node a0."""

    def allocated() -> list[dict[str, str]]:
        return [claim["metadata"] for claim in namespace.claims() if claim.get("status", {}).get("allocation")]

    cluster.until(allocated)
    (claim,) = allocated()
    cluster.until(lambda: cluster.logged_at("a0", "preparing", f"{namespace.name}/{claim['name']}"))
    return claim["uid"]


def test_during_an_update_two_plugins_serve_the_kubelet_and_the_slice_does_not_change(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    namespace.create_domain("train")
    namespace.create_pod("old", "a0", template="train")
    namespace.until_running("old")
    driver = cluster.drivers["a0"]
    (published,) = slices(cluster, "a0")
    registrations = cluster.registrations("a0")
    second = driver.node_program("imex-node-second")
    second.start()
    cluster.until(lambda: cluster.registrations("a0") > registrations)
    namespace.create_pod("both", "a0", template="train")
    namespace.until_running("both")
    driver.program.stop()
    namespace.create_pod("new", "a0", template="train")
    namespace.until_running("new")
    namespace.delete("pod", "old", "both", "new")
    cluster.until_nothing_prepared()
    driver.program.start()
    cluster.until(lambda: cluster.registrations("a0") > registrations + 1)
    second.stop()
    assert slices(cluster, "a0") == {published}


def test_the_claim_of_a_force_deleted_pod_is_unprepared(cluster: DriverCluster, namespace: Namespace) -> None:
    namespace.create_domain("train")
    namespace.create_pod("p", "a0", template="train")
    namespace.until_running("p")
    namespace.kubectl("delete", "pod", "p", "--force", "--grace-period=0")
    cluster.until_nothing_prepared()


def test_a_claim_is_unprepared_although_it_and_its_computedomain_no_longer_exist(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    uid = namespace.create_domain("train")
    namespace.create_pod("p", "a0", template="train")
    namespace.until_running("p")
    with cluster.without_kubelet("a0"):
        namespace.release_domain("train")
        namespace.kubectl("delete", "pod", "p", "--force", "--grace-period=0")
        for claim in namespace.claims():
            name, patch = claim["metadata"]["name"], '-p={"metadata":{"finalizers":null}}'
            with suppress(Rejected):  # Kubernetes may have deleted it already
                namespace.kubectl("patch", "resourceclaim", name, "--type=merge", patch)
        namespace.delete("resourceclaims", "--all")
        cluster.until(lambda: not namespace.exists("computedomain", "train"))
        cluster.until(lambda: cluster.assigned_channel(uid) is None)
        assert len(cluster.prepared_claims("a0")) == 1
    cluster.until_nothing_prepared()


def test_a_controller_that_is_killed_between_assignment_and_status_keeps_the_assignment(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    uid = namespace.create_domain("train")
    cluster.until(lambda: namespace.condition("train", "Ready"))
    with status_writes_forbidden(cluster):
        namespace.create_pod("p", "a0", template="train")
        cluster.until(lambda: cluster.assigned_channel(uid) is not None)
        cluster.controller.kill()
        assert cluster.controller.wait(within=60)
    assert "partitions" not in namespace.status("train")
    channel = cluster.assigned_channel(uid)
    namespace.until_running("p")
    cluster.controller.start()

    def reported() -> list[tuple[str, int]]:
        return [(found["name"], found["channel"]) for found in namespace.status("train").get("partitions", [])]

    cluster.until(lambda: reported() == [(PARTITION_A, channel)])
    assert cluster.assigned_channel(uid) == channel


@contextmanager
def status_writes_forbidden(cluster: DriverCluster) -> Iterator[None]:
    """Stops the controller exactly between an assignment and its report: it may not write ComputeDomain status."""
    role = cluster.kubectl.get("clusterrole", "imex-controller")
    base = {"apiVersion": role["apiVersion"], "kind": role["kind"], "metadata": {"name": "imex-controller"}}
    start, forbidden = datetime.now(UTC), "computedomains/status"
    remaining = [rule for rule in role["rules"] if rule["resources"] != [forbidden]]
    cluster.kubectl.apply({**base, "rules": remaining})
    try:
        cluster.until(lambda: not may_write_status(cluster))
        yield
    finally:
        cluster.kubectl.apply({**base, "rules": role["rules"]})
        cluster.until(lambda: may_write_status(cluster))
        cluster.revoked_permissions.append((forbidden, start, datetime.now(UTC)))


def may_write_status(cluster: DriverCluster) -> bool:
    account = "--as=system:serviceaccount:imex-dra:imex-controller"
    try:
        cluster.kubectl("auth", "can-i", "patch", "computedomains", "--subresource=status", account)
    except Rejected:
        return False
    return True


def test_a_computedomain_becomes_ready_again_after_its_imex_daemon_was_killed(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    namespace.create_domain("train")
    namespace.create_pod("p", "a0", template="train")
    namespace.until_running("p")

    def reported_start() -> object:
        """When the IMEX daemon of a0 was started, according to the ComputeDomain."""
        return next((node.get("imexStartedAt") for node in namespace.status("train").get("nodes", [])), None)

    cluster.until(reported_start)
    before = reported_start()
    cluster.kill_imex_daemon("a0")
    # What is reported until the kill is noticed says Ready too.
    cluster.until(lambda: reported_start() not in (None, before))
    cluster.until(lambda: namespace.condition("train", "Ready").get("status") == "True")
