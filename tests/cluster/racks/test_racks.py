"""Two racks on a real control plane, as a user sees them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from imex_dra.sandbox.cluster.handle import Cluster
from tests.cluster.team import Team, until

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(600)]

LIST_CHANNELS = ("sh", "-c", "ls /dev/nvidia-caps-imex-channels; exec sleep 10000")


@pytest.fixture
def team(cluster: Cluster) -> Iterator[Team]:
    made = Team(cluster)
    yield made
    made.disband()


def test_36_nodes_are_ready_in_two_cliques(cluster: Cluster) -> None:
    lines = cluster.kubectl("get", "nodes", "--no-headers", "-L", "nvidia.com/gpu.clique").splitlines()
    rows = [line.split() for line in lines]
    assert len(rows) == 36
    assert {row[1] for row in rows} == {"Ready"}
    cliques: dict[str, set[str]] = {}
    for row in rows:
        cliques.setdefault(row[-1], set()).add(row[0].partition("-")[0])
    assert sorted(cliques.values(), key=str) == [{"r0"}, {"r1"}]
    assert set(cliques) == {node.partition for node in cluster.nodes.values()}


def test_18_pods_of_a_compute_domain_in_one_rack_have_the_same_channel(cluster: Cluster, team: Team) -> None:
    team.domain("train")
    pods = {f"worker-{index}": node.name for index, node in enumerate(cluster.racks["r1"])}
    cluster.kubectl.apply(
        *(team.pod(pod, node, template="train", command=LIST_CHANNELS) for pod, node in pods.items())
    )
    team.until_ready(*pods)
    until(cluster, lambda: all(team.kubectl("logs", pod) for pod in pods))
    channels = [team.kubectl("logs", pod).split() for pod in pods]
    assert len(channels) == 18
    assert channels == [channels[0]] * 18
    assert len(channels[0]) == 1
    until(cluster, lambda: team.get("computedomain", "train")["status"]["summary"]["nodes"] == "18/18")


def test_each_program_speaks_for_itself(cluster: Cluster) -> None:
    """Identities as on a real cluster: nodes, and service accounts bound to theirs."""
    node, account = "system:node:r1-n17", "system:serviceaccount:imex-dra:imex-node"
    entries = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
    users = {entry["user"]["username"] for entry in entries}
    bound = {name for e in entries if e["user"]["username"] == account for name in _bound_to(e)}
    assert {node, account, "system:serviceaccount:imex-dra:imex-controller"} <= users
    assert bound == set(cluster.nodes)


def _bound_to(entry: dict[str, Any]) -> list[str]:
    found: list[str] = entry["user"].get("extra", {}).get("authentication.kubernetes.io/node-name", [])
    return found
