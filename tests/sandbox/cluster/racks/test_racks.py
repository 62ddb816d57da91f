"""Two racks, as a user sees them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from imex_sandbox.cluster.handle import Cluster
from tests.sandbox.cluster.namespace import Namespace, until

pytestmark = [pytest.mark.racks, pytest.mark.slow, pytest.mark.timeout(600)]

LIST_CHANNELS = ("sh", "-c", "ls /dev/nvidia-caps-imex-channels; exec sleep 10000")


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    namespace = Namespace(cluster)
    yield namespace
    namespace.delete_all()


def test_36_nodes_are_ready_in_two_cliques(cluster: Cluster) -> None:
    def listed() -> list[list[str]]:
        lines = cluster.kubectl("get", "nodes", "--no-headers", "-L", "nvidia.com/gpu.clique").splitlines()
        return [line.split() for line in lines]

    # Tests before this one have rebooted a node.
    until(cluster, lambda: {row[1] for row in listed()} == {"Ready"})
    rows = listed()
    assert len(rows) == 36
    racks_by_clique: dict[str, set[str]] = {}
    for row in rows:
        racks_by_clique.setdefault(row[-1], set()).add(row[0].partition("-")[0])
    assert sorted(racks_by_clique.values(), key=str) == [{"r0"}, {"r1"}]
    assert set(racks_by_clique) == {node.partition for node in cluster.nodes.values()}


def test_18_pods_of_a_compute_domain_in_one_rack_have_the_same_channel(
    cluster: Cluster, namespace: Namespace
) -> None:
    namespace.domain("train")
    pods = {f"worker-{index}": node.name for index, node in enumerate(cluster.racks["r1"])}
    cluster.kubectl.apply(
        *(namespace.pod(pod, node, template="train", command=LIST_CHANNELS) for pod, node in pods.items())
    )
    namespace.until_ready(*pods)
    until(cluster, lambda: all(namespace.kubectl("logs", pod) for pod in pods))
    channels = [namespace.kubectl("logs", pod).split() for pod in pods]
    assert len(channels) == 18
    assert channels == [channels[0]] * 18
    assert len(channels[0]) == 1
    until(cluster, lambda: namespace.ready_nodes("train") == "18/18")


def test_each_program_has_its_own_identity(cluster: Cluster) -> None:
    """As in a real cluster: kubelets are nodes, and the tokens of imex-node are bound to their node."""
    kubelet, imex_node = "system:node:r1-n17", "system:serviceaccount:imex-dra:imex-node"
    text = cluster.audit_log.read_text()
    # The last line may be incomplete.
    entries = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    users = {entry["user"]["username"] for entry in entries}
    nodes = {name for entry in entries if entry["user"]["username"] == imex_node for name in bound_nodes(entry)}
    assert {kubelet, imex_node, "system:serviceaccount:imex-dra:imex-controller"} <= users
    assert nodes == set(cluster.nodes)


def bound_nodes(entry: dict[str, Any]) -> list[str]:
    found: list[str] = entry["user"].get("extra", {}).get("authentication.kubernetes.io/node-name", [])
    return found
