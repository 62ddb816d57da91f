"""A pod gets the channel of its ComputeDomain, and only the containers that use the claim get it."""

import pytest

from tests.driver.cluster import PARTITION_A, PARTITION_B, PARTITIONS, DriverCluster
from tests.driver.namespace import Namespace

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]


def test_a_container_with_the_claim_gets_the_channel_and_a_container_without_it_gets_nothing(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    uid = namespace.create_domain("train")
    namespace.create_pod("p", "a0", template="train", extra=["sidecar"])
    namespace.until_running("p")
    channel = cluster.assigned_channel(uid)
    assert channel is not None
    assert channel > 0
    device = f"/dev/nvidia-caps-imex-channels/channel{channel}"
    assert namespace.exec("p", f"stat -c '%F %t %T %a' {device}") == f"character special file ea {channel:x} 666"
    environment = set(namespace.exec("p", "env | grep COMPUTE_DOMAIN").splitlines())
    assert environment == {
        "COMPUTE_DOMAIN_NAME=train",
        f"COMPUTE_DOMAIN_UUID={uid}",
        f"COMPUTE_DOMAIN_CHANNEL={channel}",
    }
    assert namespace.channels_in("p", "sidecar") == []
    assert namespace.exec("p", "env | grep -c COMPUTE_DOMAIN; true", "sidecar") == "0"


def test_pods_of_one_computedomain_share_its_channel_on_one_node_and_across_nodes(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    uid = namespace.create_domain("train")
    for name, node in (("one", "a0"), ("two", "a0"), ("three", "a1")):
        namespace.create_pod(name, node, template="train")
    namespace.until_running("one", "two", "three")
    expected = [f"channel{cluster.assigned_channel(uid)}"]
    assert [namespace.channels_in(pod) for pod in ("one", "two", "three")] == [expected] * 3
    cluster.until(lambda: namespace.ready_nodes("train") == "2/2")
    cluster.until(lambda: namespace.condition("train", "Ready").get("status") == "True")


def test_two_computedomains_on_one_node_have_different_channels(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    uids = [namespace.create_domain(name) for name in ("red", "blue")]
    for name in ("red", "blue"):
        namespace.create_pod(name, "a0", template=name)
    namespace.until_running("red", "blue")
    channels = [cluster.assigned_channel(uid) for uid in uids]
    assert len(set(channels)) == 2
    assert [namespace.channels_in(pod) for pod in ("red", "blue")] == [[f"channel{n}"] for n in channels]


def test_a_computedomain_in_two_partitions_has_a_channel_in_each(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    uid = namespace.create_domain("wide")
    namespace.create_pod("in-a", "a0", template="wide")
    namespace.create_pod("in-b", "b0", template="wide")
    namespace.until_running("in-a", "in-b")
    assert namespace.channels_in("in-a") == [f"channel{cluster.assigned_channel(uid, PARTITION_A)}"]
    assert namespace.channels_in("in-b") == [f"channel{cluster.assigned_channel(uid, PARTITION_B)}"]

    def nodes() -> dict[str, int]:
        return {p["name"]: p["nodes"] for p in namespace.status("wide").get("partitions", [])}

    cluster.until(lambda: nodes() == {PARTITION_A: 1, PARTITION_B: 1})


def test_pods_on_one_node_can_share_a_claim_that_was_not_created_from_a_template(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    uid = namespace.create_domain("shared")
    config = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": uid}
    namespace.create_claim("shared", config)
    namespace.create_pod("one", "a1", claim="shared")
    namespace.create_pod("two", "a1", claim="shared")
    namespace.until_running("one", "two")
    expected = [f"channel{cluster.assigned_channel(uid)}"]
    assert namespace.channels_in("one") == namespace.channels_in("two") == expected


def test_nodes_have_the_clique_label(cluster: DriverCluster) -> None:
    def cliques() -> dict[str, str]:
        nodes = [node["metadata"] for node in cluster.kubectl.get("nodes")["items"]]
        return {node["name"]: node["labels"].get("nvidia.com/gpu.clique") for node in nodes}

    cluster.until(lambda: cliques() == PARTITIONS)


def test_the_deletion_of_a_computedomain_waits_for_its_pods_and_names_them(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    uid = namespace.create_domain("busy")
    namespace.create_pod("worker", "a0", template="busy")
    namespace.until_running("worker")
    channel = cluster.assigned_channel(uid)
    namespace.kubectl("delete", "computedomain", "busy", "--wait=false")
    cluster.until(lambda: namespace.condition("busy", "Deleting") != {})
    assert f"{namespace.name}/worker" in namespace.condition("busy", "Deleting")["message"]
    assert not namespace.exists("resourceclaimtemplate", "busy")
    assert cluster.assigned_channel(uid) == channel
    namespace.delete("pod", "worker")
    cluster.until(lambda: not namespace.exists("computedomain", "busy"))
    # The entry is Released, or gone already if every member has acknowledged the release.
    assert cluster.assigned_channel(uid) is None
