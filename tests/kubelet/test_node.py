"""The Node object and its heartbeat."""

import platform
from typing import Any

from tests.kubelet.api import LEASES, NODES
from tests.kubelet.stage import Stage
from tests.sandbox.waiting import eventually

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def node_of(stage: Stage) -> Any:
    return stage.api.get(f"{NODES}/{stage.kubelet.name}")


def test_it_is_ready_and_under_no_pressure(stage: Stage) -> None:
    conditions = {condition["type"]: condition for condition in node_of(stage)["status"]["conditions"]}
    assert {kind: condition["status"] for kind, condition in conditions.items()} == {
        "Ready": "True",
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
    }
    assert conditions["Ready"]["reason"] == "KubeletReady"
    assert conditions["Ready"]["message"] == "kubelet is posting ready status"
    assert all(c["lastHeartbeatTime"] and c["lastTransitionTime"] for c in conditions.values())


def test_its_labels_say_what_and_where_it_is(stage: Stage) -> None:
    labels = node_of(stage)["metadata"]["labels"]
    assert (
        labels.items()
        >= {
            "kubernetes.io/hostname": stage.kubelet.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": ARCHITECTURE,
            "beta.kubernetes.io/os": "linux",
            "beta.kubernetes.io/arch": ARCHITECTURE,
        }.items()
    )


def test_it_says_what_it_has_and_who_it_is(stage: Stage) -> None:
    status = node_of(stage)["status"]
    assert status["capacity"].keys() >= {"cpu", "memory", "pods", "ephemeral-storage"}
    assert status["allocatable"].keys() == status["capacity"].keys()
    assert status["capacity"]["pods"] == "110"
    assert {a["type"] for a in status["addresses"]} == {"InternalIP", "Hostname"}
    info = status["nodeInfo"]
    assert info["kubeletVersion"].startswith("v1.36.4")
    assert info["operatingSystem"] == "linux"
    assert info["architecture"] == ARCHITECTURE
    assert all(info[key] for key in ("bootID", "machineID", "systemUUID", "kernelVersion", "osImage"))
    assert "://" in info["containerRuntimeVersion"]


def test_its_lease_is_renewed(stage: Stage) -> None:
    path = f"{LEASES}/{stage.kubelet.name}"
    assert eventually(lambda: stage.api.find(path) is not None)
    first = stage.api.get(path)
    assert first["spec"]["holderIdentity"] == stage.kubelet.name
    assert first["spec"]["leaseDurationSeconds"] == 40
    (owner,) = first["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", node_of(stage)["metadata"]["uid"])
    assert eventually(lambda: stage.api.get(path)["spec"]["renewTime"] > first["spec"]["renewTime"])


def test_taken_away_it_comes_back_when_the_kubelet_does(stage: Stage) -> None:
    before = node_of(stage)["metadata"]["uid"]
    stage.api.delete(f"{NODES}/{stage.kubelet.name}")
    stage.kubelet.kill()
    stage.kubelet.revive()
    assert eventually(lambda: stage.api.find(f"{NODES}/{stage.kubelet.name}") is not None)
    assert node_of(stage)["metadata"]["uid"] != before
    assert eventually(lambda: ready(node_of(stage)))


def ready(node: Any) -> bool:
    return ("Ready", "True") in [(c["type"], c["status"]) for c in node["status"]["conditions"]]
