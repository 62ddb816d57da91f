"""What a test or a fault can do to a running cluster through its handle."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.base.errors import Rejected
from imex_sandbox.cluster.handle import Cluster, Node
from tests.sandbox.cluster.namespace import Namespace, until

pytestmark = [pytest.mark.racks, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return cluster.nodes["r0-n17"]


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    namespace = Namespace(cluster)
    yield namespace
    namespace.delete_all()


def nvlink_node(cluster: Cluster, node: Node) -> dict[str, object]:
    status: dict[str, object] = cluster.kubectl.get("nvlinknode", node.name)["status"]
    return status


def container_statuses(namespace: Namespace, pod: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = namespace.get("pod", pod)["status"].get("containerStatuses", [])
    return found


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_rebooted_node_has_a_new_boot_id_and_restarts_its_pods(
    cluster: Cluster, node: Node, namespace: Namespace
) -> None:
    """Without a claim: a kubelet that finds no plugin yet retries to prepare a claim after a minute only."""
    cluster.kubectl.apply(namespace.pod("worker", node.name))
    namespace.until_ready("worker")
    before = nvlink_node(cluster, node)["bootID"]
    boot_id = node.reboot()
    assert boot_id != before
    until(cluster, lambda: nvlink_node(cluster, node)["bootID"] == boot_id)
    until(cluster, lambda: cluster.kubectl.get("node", node.name)["status"]["nodeInfo"]["bootID"] == boot_id)
    until(cluster, lambda: [one["restartCount"] for one in container_statuses(namespace, "worker")] == [1])
    namespace.until_ready("worker")
    until(cluster, lambda: nvlink_node(cluster, node)["imexState"] == "READY")


def test_a_killed_program_stays_down_until_it_is_started(cluster: Cluster, node: Node) -> None:
    node.kill("imex-node")
    assert cluster.status()["down"] == [f"{node.name}/imex-node"]
    node.start("imex-node")
    assert cluster.status()["down"] == []
    with pytest.raises(Rejected, match=r"imex-node of node r0-n17 is already running"):
        node.start("imex-node")


def test_containers_keep_running_while_their_kubelet_is_down(
    cluster: Cluster, node: Node, namespace: Namespace
) -> None:
    cluster.kubectl.apply(namespace.pod("worker", node.name))
    namespace.until_ready("worker")
    before = container_statuses(namespace, "worker")
    node.kill("kubelet")
    assert cluster.status()["down"] == [f"{node.name}/kubelet"]
    node.start("kubelet")
    assert cluster.status()["down"] == []
    cluster.kubectl.apply(namespace.pod("second", node.name))
    namespace.until_ready("second")
    # A container that was restarted would have another id for good.
    until(cluster, lambda: container_statuses(namespace, "worker") == before)


def test_nvidia_imex_can_be_hung_and_resumed_and_is_restarted_when_it_is_killed(
    cluster: Cluster, node: Node
) -> None:
    pid = node.pid("nvidia-imex")
    node.hang("nvidia-imex")
    until(cluster, lambda: process_state(pid) == "T")
    node.resume("nvidia-imex")
    until(cluster, lambda: process_state(pid) != "T")
    node.kill("nvidia-imex")
    until(cluster, lambda: not Path(f"/proc/{pid}").exists())

    def another_process_runs() -> bool:
        try:
            return node.pid("nvidia-imex") != pid
        except Rejected:
            return False

    until(cluster, another_process_runs)
    until(cluster, lambda: nvlink_node(cluster, node)["imexState"] == "READY")


def test_the_controller_can_be_killed_and_is_restarted_when_it_ends_by_itself(cluster: Cluster) -> None:
    first = cluster.pid("imex-controller")
    cluster.kill("imex-controller")
    assert cluster.status()["down"] == ["imex-controller"]
    cluster.start("imex-controller")
    second = cluster.pid("imex-controller")
    assert second != first
    os.kill(second, signal.SIGKILL)
    until(cluster, lambda: cluster.pid("imex-controller") != second)


@pytest.mark.parametrize(
    ("action", "node", "program", "message"),
    [
        ("melt", "", "", "cannot melt the cluster: name a node"),
        ("kill", "r9-n00", "imex-node", "there is no node r9-n00"),
        ("kill", "r0-n00", "systemd", "no program systemd: its programs are kubelet, imex-node"),
        ("start", "r0-n00", "nvidia-imex", "its supervisor starts it"),
        ("start", "r0-n00", "kubelet", "already running"),
        ("hang", "r0-n00", "kubelet", "cannot hang"),
        ("melt", "", "kube-apiserver", "kube-apiserver does not support melt"),
    ],
)
def test_an_impossible_request_is_refused_with_the_reason(
    cluster: Cluster, action: str, node: str, program: str, message: str
) -> None:
    with pytest.raises(Rejected, match=message):
        cluster.ask(action, node=node, program=program)
