"""A released channel is reused when no node holds it; a node that moved joins when it holds no old channels."""

import pytest

from tests.driver.cluster import PARTITION_A, PARTITION_B, DriverCluster
from tests.driver.namespace import Namespace

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]


def test_two_channels_are_enough_for_many_computedomains_one_after_the_other(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    with cluster.hardware("b0", channel_count=3):
        cluster.until(lambda: cluster.node_status("b0")["channelCount"] == 3)
        assigned = []
        for number in range(4):
            name = f"job-{number}"
            uid = namespace.create_domain(name)
            namespace.create_pod(name, "b0", template=name)
            namespace.until_running(name, within=240)
            assigned.append(cluster.assigned_channel(uid, PARTITION_B))
            assert namespace.channels_in(name) == [f"channel{assigned[-1]}"]
            namespace.delete("pod", name)
            namespace.delete("computedomain", name)
    assert set(assigned) == {1, 2}
    cluster.until(lambda: cluster.node_status("b0")["channelCount"] == 2048)


def test_a_channel_is_not_reused_while_a_pod_of_its_deleted_computedomain_holds_it(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    with cluster.hardware("b0", channel_count=2):
        cluster.until(lambda: cluster.node_status("b0")["channelCount"] == 2)
        namespace.create_domain("first")
        namespace.create_pod("holder", "b0", template="first")
        namespace.until_running("holder", within=240)
        namespace.release_domain("first")
        cluster.until(lambda: not namespace.exists("computedomain", "first"))
        second = namespace.create_domain("second")
        namespace.create_pod("waiting", "b0", template="second")

        def reuse_message() -> str:
            return str(cluster.partition_condition("ChannelsReusable", PARTITION_B).get("message", ""))

        cluster.until(lambda: "b0 holds channel 1" in reuse_message())
        assert cluster.assigned_channel(second, PARTITION_B) is None
        namespace.delete("pod", "holder")
        cluster.until(lambda: cluster.assigned_channel(second, PARTITION_B) == 1)
        namespace.until_running_after_failure("waiting")
    cluster.until(lambda: cluster.node_status("b0")["channelCount"] == 2048)


def test_a_node_that_moved_joins_its_new_partition_when_it_holds_no_channel_of_the_old_one(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    namespace.create_domain("train")
    namespace.create_pod("old", "b0", template="train")
    namespace.until_running("old")
    with cluster.hardware("b0", partition=PARTITION_A):

        def admission() -> dict[str, str]:
            return cluster.partition_condition("NodesAdmitted")

        cluster.until(lambda: f"{namespace.name}/old" in admission().get("message", ""))
        assert admission()["reason"] == "DrainFirst"
        cluster.until(lambda: cluster.node_condition("b0", "Ready").get("reason") == "DrainFirst")
        cluster.until(lambda: cluster.node_status("b0").get("imexPartition", "") == "")
        assert "b0" not in cluster.staying_members()
        namespace.delete("pod", "old")
        cluster.until(lambda: "b0" in cluster.staying_members())
        cluster.until(lambda: cluster.node_status("b0").get("imexPartition") == PARTITION_A)
        cluster.until(lambda: cluster.summary().get("nodes") == "3/3")
        cluster.until(lambda: cluster.staying_members(PARTITION_B) == [])
        cluster.until(lambda: admission().get("status") == "True")
    cluster.until(lambda: cluster.staying_members(PARTITION_B) == ["b0"])
    cluster.until(lambda: {node for node, _, _ in cluster.members()} == {"a0", "a1"})
    cluster.until(lambda: cluster.summary(PARTITION_B).get("state") == "UP")
    cluster.until_published("b0")
