"""The Node object and the node's Lease."""

import platform
from typing import Any

from imex_sandbox.kubernetes.versions import kubernetes
from tests.sandbox.kubelet.api import LEASES, NODES
from tests.sandbox.kubelet.fixture import KubeletFixture
from tests.waiting import until

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def node_object(node: KubeletFixture) -> Any:
    return node.api.get(f"{NODES}/{node.kubelet.name}")


def is_ready(document: Any) -> bool:
    return ("Ready", "True") in [(c["type"], c["status"]) for c in document["status"]["conditions"]]


def test_a_node_is_ready_and_reports_no_pressure(node: KubeletFixture) -> None:
    conditions = {condition["type"]: condition for condition in node_object(node)["status"]["conditions"]}
    assert {kind: condition["status"] for kind, condition in conditions.items()} == {
        "Ready": "True",
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
    }
    assert conditions["Ready"]["reason"] == "KubeletReady"
    assert conditions["Ready"]["message"] == "kubelet is posting ready status"
    assert all(c["lastHeartbeatTime"] and c["lastTransitionTime"] for c in conditions.values())


def test_a_node_has_the_well_known_labels(node: KubeletFixture) -> None:
    labels = node_object(node)["metadata"]["labels"]
    assert (
        labels.items()
        >= {
            "kubernetes.io/hostname": node.kubelet.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": ARCHITECTURE,
            "beta.kubernetes.io/os": "linux",
            "beta.kubernetes.io/arch": ARCHITECTURE,
        }.items()
    )


def test_a_node_reports_capacity_addresses_and_system_info(node: KubeletFixture) -> None:
    status = node_object(node)["status"]
    assert status["capacity"].keys() >= {"cpu", "memory", "pods", "ephemeral-storage"}
    assert status["allocatable"].keys() == status["capacity"].keys()
    assert status["capacity"]["pods"] == "110"
    assert {a["type"] for a in status["addresses"]} == {"InternalIP", "Hostname"}
    info = status["nodeInfo"]
    assert info["kubeletVersion"].startswith(kubernetes())
    assert info["operatingSystem"] == "linux"
    assert info["architecture"] == ARCHITECTURE
    assert all(info[key] for key in ("bootID", "machineID", "systemUUID", "kernelVersion", "osImage"))
    assert "://" in info["containerRuntimeVersion"]


def test_the_lease_belongs_to_the_node_and_is_renewed(node: KubeletFixture) -> None:
    path = f"{LEASES}/{node.kubelet.name}"
    until(lambda: node.api.find(path) is not None)
    first = node.api.get(path)
    assert first["spec"]["holderIdentity"] == node.kubelet.name
    assert first["spec"]["leaseDurationSeconds"] == 40
    (owner,) = first["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", node_object(node)["metadata"]["uid"])
    until(lambda: node.api.get(path)["spec"]["renewTime"] > first["spec"]["renewTime"])


def test_a_deleted_node_is_registered_again_when_the_kubelet_restarts(node: KubeletFixture) -> None:
    before = node_object(node)["metadata"]["uid"]
    node.api.delete(f"{NODES}/{node.kubelet.name}")
    node.kubelet.kill_kubelet()
    node.kubelet.start_kubelet()
    until(lambda: node.api.find(f"{NODES}/{node.kubelet.name}") is not None)
    assert node_object(node)["metadata"]["uid"] != before
    until(lambda: is_ready(node_object(node)))
