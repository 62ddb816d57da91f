"""The smaller examples, applied as they stand; the MPIJob has a file of its own."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.sandbox.cluster.handle import Cluster
from tests.cluster.team import Team, until

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def team(cluster: Cluster) -> Iterator[Team]:
    made = Team(cluster)
    yield made
    made.disband()


def test_a_compute_domain_brings_its_template(cluster: Cluster, team: Team) -> None:
    team.kubectl("apply", "-f", str(EXAMPLES / "compute-domain"))
    until(
        cluster, lambda: bool(team.kubectl("get", "resourceclaimtemplate", "imex-channel-0", "--ignore-not-found"))
    )
    assert team.get("computedomain", "my-workload")["spec"]["numNodes"] == 0


def test_a_minimal_pod_has_the_channel_in_the_container_that_claims_it(cluster: Cluster, team: Team) -> None:
    team.kubectl("apply", "-f", str(EXAMPLES / "minimal-pod"))
    team.until_ready("minimal")
    assert team.kubectl("get", "resourceclaims", "--no-headers").split()[1] == "allocated,reserved"
    until(
        cluster, lambda: re.fullmatch(r"channel\d+\n", team.kubectl("logs", "minimal", "-c", "main")) is not None
    )
    until(cluster, lambda: "No such file" in team.kubectl("logs", "minimal", "-c", "sidecar"))
    until(cluster, lambda: team.get("computedomain", "minimal")["status"]["summary"]["nodes"] == "1/1")
