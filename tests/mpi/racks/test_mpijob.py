"""MPIJobs through the real MPI Operator, on two simulated racks."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.cluster.handle import Cluster
from tests.cluster.team import Team, until

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(900)]

FULL_RACK = Path(__file__).parents[3] / "examples" / "mpijob-gb200" / "mpijob.yaml"
NAME = "nccl-test-72-gb200-18n"
RANK = re.compile(
    r"^#  Rank +(\d+) Group +0 Pid +\d+ on (\S+)/node (\d+) channel (\d+) device +(\d+) ", re.MULTILINE
)
VERY_GENEROUS = 400


@pytest.fixture
def team(cluster: Cluster) -> Iterator[Team]:
    made = Team(cluster)
    yield made
    made.delete("mpijobs", "--all")
    made.disband()


def until_job(team: Team, condition: str, job: str) -> None:
    words = ("wait", f"--for=condition={condition}", f"--timeout={VERY_GENEROUS}s", f"mpijob/{job}")
    try:
        team.cluster.kubectl("-n", team.name, *words, within=VERY_GENEROUS + 60)
    except Rejected as error:
        shown = [team.kubectl(*words) for words in (("get", "pods", "-o", "wide"), ("get", "events"))]
        raise AssertionError("\n".join([str(error), *shown, output(team, job), team.cluster.logs()])) from error


def output(team: Team, job: str) -> str:
    return team.kubectl("logs", f"job/{job}-launcher")


def racks_of_workers(team: Team, job: str) -> list[str]:
    """Where the scheduler put them; its Events tell it even when the pods are gone."""
    events = team.get("events", "--field-selector=reason=Scheduled")["items"]
    said = [event["note"] if "note" in event else event["message"] for event in events]
    placed = dict(re.findall(rf"{team.name}/({job}-worker-\d+) to (\S+)", "\n".join(said)))
    return [team.cluster.nodes[node].rack for node in placed.values()]


def small_job(name: str, template: str, *argv: str) -> dict[str, Any]:
    """Two workers with two slots each; a launcher that tries once."""
    claim = {"name": "channel", "resourceClaimTemplateName": template}
    worker = {"name": "main", "image": "any", "resources": {"claims": [{"name": "channel"}]}}
    launcher = {"name": "main", "image": "any", "command": list(argv)}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {
            "slotsPerWorker": 2,
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
            "launcherCreationPolicy": "WaitForWorkersReady",
            "mpiReplicaSpecs": {
                "Launcher": {"restartPolicy": "Never", "template": {"spec": {"containers": [launcher]}}},
                "Worker": {
                    "replicas": 2,
                    "template": {
                        "spec": {
                            "nodeSelector": {"sandbox.imex-dra.io/rack": "r1"},
                            "resourceClaims": [claim],
                            "containers": [worker],
                        }
                    },
                },
            },
        },
    }


def apply(team: Team, document: dict[str, Any]) -> None:
    document["metadata"]["namespace"] = team.name
    team.cluster.kubectl.apply(document)


def test_the_full_rack_example_reduces_over_72_ranks_in_one_rack(cluster: Cluster, team: Team) -> None:
    team.kubectl("apply", "-f", str(FULL_RACK))
    until(cluster, lambda: len(racks_of_workers(team, NAME)) == 18)
    assert len(set(racks_of_workers(team, NAME))) == 1
    until_job(team, "Succeeded", NAME)
    said = output(team, NAME)
    ranks = [(int(rank), pod, node, channel, device) for rank, pod, node, channel, device in RANK.findall(said)]
    assert [rank for rank, *_ in ranks] == list(range(72))
    assert [pod for _, pod, *_ in ranks] == [f"{NAME}-worker-{number}" for number in range(18) for _ in range(4)]
    assert len({node for _, _, node, _, _ in ranks}) == 18
    assert len({channel for _, _, _, channel, _ in ranks}) == 1
    assert [device for *_, device in ranks] == ["0", "1", "2", "3"] * 18
    assert "# Out of bounds values : 0 OK" in said
    assert re.findall(r"^ +(\d+) +\d+ +int32 ", said, re.MULTILINE) == ["65536", "1048576"]
    until(cluster, lambda: team.get("resourceclaims")["items"] == [])


def test_imex_allreduce_is_on_the_path_of_every_container(team: Team) -> None:
    team.domain("train")
    apply(
        team, small_job("reduce", "train", "mpirun", "--tag-output", "imex", "allreduce", "-b", "4K", "-e", "4K")
    )
    until_job(team, "Succeeded", "reduce")
    said = output(team, "reduce")
    assert "[1,0]<stdout>:# Out of bounds values : 0 OK" in said


def test_a_job_fails_with_the_first_rank_that_does(team: Team) -> None:
    team.domain("train")
    apply(team, small_job("fail", "train", "mpirun", "sh", "-c", "test $RANK != 2 || exit 7; exec sleep 10000"))
    until_job(team, "Failed", "fail")
    assert "mpirun: rank 2 on fail-worker-1 ended with exit code 7; the job of 4 ranks was ended" in output(
        team, "fail"
    )
    (launcher,) = team.get("pods", "-l", "training.kubeflow.org/job-role=launcher")["items"]
    assert launcher["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
