"""The driver beside NVIDIA's, on real kubelets: it gives way, and continues when the other one is gone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from imex_dra.api.names import DRIVER
from tests.driver.cluster import DriverCluster
from tests.driver.namespace import Namespace

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]


@contextmanager
def other_driver(cluster: DriverCluster) -> Iterator[None]:
    """Its DaemonSet, which selects no node."""
    labels = {"app": "kubelet-plugin"}
    container = {"name": "c", "image": "example.invalid/c", "command": ["compute-domain-kubelet-plugin"]}
    pod = {"nodeSelector": {"example.invalid/none": "none"}, "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    cluster.kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}},
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "kubelet-plugin", "namespace": "gpu-operator"},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        },
    )
    try:
        yield
    finally:
        cluster.kubectl("delete", "namespace", "gpu-operator", within=120)


def foreign_slice(node: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{DRIVER}-x7f"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "channel-0"}],
        },
    }


def test_the_whole_driver_stops_while_the_other_one_is_installed_and_running_pods_continue(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    namespace.create_domain("train")
    namespace.create_pod("p", "a0", template="train")
    namespace.until_running("p")
    channels = namespace.channels_in("p")
    try:
        with other_driver(cluster):
            cluster.until(lambda: not cluster.controller.running)
            assert cluster.controller.exit_code == 3
            assert "DaemonSet gpu-operator/kubelet-plugin" in cluster.partition_condition("OtherDriver")["message"]
            cluster.until(lambda: not cluster.publishing_nodes())
            assert namespace.channels_in("p") == channels
            namespace.delete("pod", "p")
            cluster.until_nothing_prepared()
    finally:
        cluster.controller.start()
    cluster.until(lambda: cluster.publishing_nodes() == cluster.drivers.keys())
    assert cluster.partition_condition("OtherDriver")["status"] == "False"


def test_a_node_stops_while_its_devices_are_published_by_another_driver(cluster: DriverCluster) -> None:
    program = cluster.drivers["b0"].program
    cluster.kubectl.apply(foreign_slice("b0"))
    try:
        cluster.until(lambda: not program.running)
        assert program.exit_code == 3
        (condition,) = [c for c in cluster.node_status("b0")["conditions"] if c["type"] == "OtherDriver"]
        assert f"ResourceSlice b0-{DRIVER}-x7f" in condition["message"]
        assert cluster.controller.running
        assert {"a0", "a1"} <= cluster.publishing_nodes()
        # No plugin serves the slice: the kubelet deletes it, and a forged one stops the node no longer than this.
        cluster.until(lambda: "b0" not in cluster.publishing_nodes())
    finally:
        program.start()
    cluster.until_published("b0")
