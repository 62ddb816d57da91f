"""What a test or a fault can do to a running cluster, and what it leads to."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.cluster.handle import Cluster, Node
from tests.cluster.team import Team, until

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return cluster.nodes["r0-n17"]


@pytest.fixture
def team(cluster: Cluster) -> Iterator[Team]:
    made = Team(cluster)
    yield made
    made.disband()


def card(cluster: Cluster, node: Node) -> dict[str, object]:
    status: dict[str, object] = cluster.kubectl.get("nvlinknode", node.name)["status"]
    return status


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_node_boots_again_with_another_boot_id_and_its_pods_come_back(
    cluster: Cluster, node: Node, team: Team
) -> None:
    """Without a claim: with one, the kubelet would look for the plugin too early, and again after a minute."""
    cluster.kubectl.apply(team.pod("worker", node.name))
    team.until_ready("worker")
    before = card(cluster, node)["bootID"]
    boot_id = node.reboot()
    assert boot_id != before
    until(cluster, lambda: card(cluster, node)["bootID"] == boot_id)
    until(cluster, lambda: cluster.kubectl.get("node", node.name)["status"]["nodeInfo"]["bootID"] == boot_id)
    until(cluster, lambda: team.get("pod", "worker")["status"]["containerStatuses"][0]["restartCount"] == 1)
    team.until_ready("worker")
    until(cluster, lambda: card(cluster, node)["imexState"] == "READY")


def test_a_killed_program_stays_down_until_it_is_started(cluster: Cluster, node: Node) -> None:
    node.kill("imex-node")
    assert cluster.status()["down"] == [f"{node.name}/imex-node"]
    node.start("imex-node")
    assert cluster.status()["down"] == []
    with pytest.raises(Rejected, match=r"imex-node of node r0-n17 runs already"):
        node.start("imex-node")


def test_a_kubelet_can_be_killed_alone(cluster: Cluster, node: Node, team: Team) -> None:
    """Its containers go on, and the next kubelet finds them."""
    cluster.kubectl.apply(team.pod("worker", node.name))
    team.until_ready("worker")
    before = team.get("pod", "worker")["status"]["containerStatuses"]
    node.kill("kubelet")
    assert cluster.status()["down"] == [f"{node.name}/kubelet"]
    node.start("kubelet")
    assert cluster.status()["down"] == []
    cluster.kubectl.apply(team.pod("second", node.name))
    team.until_ready("second")
    assert team.get("pod", "worker")["status"]["containerStatuses"] == before


def test_nvidia_imex_hangs_goes_on_and_is_started_again_when_killed(cluster: Cluster, node: Node) -> None:
    pid = node.pid("nvidia-imex")
    node.hang("nvidia-imex")
    until(cluster, lambda: state(pid) == "T")
    node.resume("nvidia-imex")
    until(cluster, lambda: state(pid) != "T")
    node.kill("nvidia-imex")
    until(cluster, lambda: not Path(f"/proc/{pid}").exists())

    def another() -> bool:
        try:
            return node.pid("nvidia-imex") != pid
        except Rejected:
            return False

    until(cluster, another)
    until(cluster, lambda: card(cluster, node)["imexState"] == "READY")


def test_the_controller_can_be_killed_and_one_that_ends_comes_back(cluster: Cluster) -> None:
    first = cluster.pid("imex-controller")
    cluster.kill("imex-controller")
    assert cluster.status()["down"] == ["imex-controller"]
    cluster.start("imex-controller")
    second = cluster.pid("imex-controller")
    assert second != first
    os.kill(second, signal.SIGKILL)
    until(cluster, lambda: cluster.pid("imex-controller") != second)


@pytest.mark.parametrize(
    ("do", "node", "program", "words"),
    [
        ("dance", "", "", "can't dance the cluster"),
        ("kill", "r9-n00", "imex-node", "there is no node r9-n00"),
        ("kill", "r0-n00", "systemd", "has no program systemd: it has kubelet, imex-node"),
        ("start", "r0-n00", "nvidia-imex", "imex-daemon starts it"),
        ("start", "r0-n00", "kubelet", "runs already"),
        ("hang", "r0-n00", "kubelet", "can't hang"),
        ("dance", "", "kube-apiserver", "kube-apiserver can't dance"),
    ],
)
def test_what_can_not_be_done_is_refused_in_words(
    cluster: Cluster, do: str, node: str, program: str, words: str
) -> None:
    with pytest.raises(Rejected, match=words):
        cluster.ask(do, node=node, program=program)
