"""MPIJobs on two simulated racks, with the real MPI Operator or with the embedded controller."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from imex_dra.base.errors import Rejected
from imex_sandbox.cluster.handle import Cluster
from tests.paths import EXAMPLES
from tests.sandbox.cluster.namespace import Namespace, until

pytestmark = [pytest.mark.racks, pytest.mark.slow, pytest.mark.timeout(900)]

FULL_RACK = EXAMPLES / "mpijob-gb200" / "mpijob.yaml"
NAME = "nccl-test-72-gb200-18n"
RANK = re.compile(
    r"^#  Rank +(\d+) Group +0 Pid +\d+ on (\S+)/node (\d+) channel (\d+) device +(\d+) ", re.MULTILINE
)
JOB_SECONDS = 400


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    made = Namespace(cluster)
    yield made
    made.delete("mpijobs", "--all")
    made.delete_all()


def until_job(namespace: Namespace, condition: str, job: str) -> None:
    words = ("wait", f"--for=condition={condition}", f"--timeout={JOB_SECONDS}s", f"mpijob/{job}")
    try:
        namespace.cluster.kubectl("-n", namespace.name, *words, within=JOB_SECONDS + 60)
    except Rejected as error:
        objects = [namespace.kubectl(*words) for words in (("get", "pods", "-o", "wide"), ("get", "events"))]
        raise AssertionError(
            "\n".join([str(error), *objects, output(namespace, job), namespace.cluster.logs()])
        ) from error


def output(namespace: Namespace, job: str) -> str:
    return namespace.kubectl("logs", f"job/{job}-launcher")


def racks_of_workers(namespace: Namespace, job: str) -> list[str]:
    """From the Events of the scheduler, which still exist when the pods have been deleted."""
    events = namespace.get("events", "--field-selector=reason=Scheduled")["items"]
    messages = [event["note"] if "note" in event else event["message"] for event in events]
    placed = dict(re.findall(rf"{namespace.name}/({job}-worker-\d+) to (\S+)", "\n".join(messages)))
    return [namespace.cluster.nodes[node].rack for node in placed.values()]


def small_job(name: str, template: str, *argv: str) -> dict[str, Any]:
    """Two workers with two slots each, and a launcher without retries."""
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


def apply(namespace: Namespace, document: dict[str, Any]) -> None:
    document["metadata"]["namespace"] = namespace.name
    namespace.cluster.kubectl.apply(document)


def test_the_full_rack_example_runs_72_ranks_in_one_rack(cluster: Cluster, namespace: Namespace) -> None:
    namespace.kubectl("apply", "-f", str(FULL_RACK))
    until(cluster, lambda: len(racks_of_workers(namespace, NAME)) == 18)
    assert len(set(racks_of_workers(namespace, NAME))) == 1
    until_job(namespace, "Succeeded", NAME)
    log = output(namespace, NAME)
    ranks = [(int(rank), pod, node, channel, device) for rank, pod, node, channel, device in RANK.findall(log)]
    assert [rank for rank, *_ in ranks] == list(range(72))
    assert [pod for _, pod, *_ in ranks] == [f"{NAME}-worker-{number}" for number in range(18) for _ in range(4)]
    assert len({node for _, _, node, _, _ in ranks}) == 18
    assert len({channel for _, _, _, channel, _ in ranks}) == 1
    assert [device for *_, device in ranks] == ["0", "1", "2", "3"] * 18
    assert "# Out of bounds values : 0 OK" in log
    assert re.findall(r"^ +(\d+) +\d+ +int32 ", log, re.MULTILINE) == ["65536", "1048576"]
    until(cluster, lambda: namespace.get("resourceclaims")["items"] == [])


def test_imex_allreduce_is_on_the_path_of_every_container(namespace: Namespace) -> None:
    namespace.domain("train")
    apply(
        namespace,
        small_job("reduce", "train", "mpirun", "--tag-output", "imex", "allreduce", "-b", "4K", "-e", "4K"),
    )
    until_job(namespace, "Succeeded", "reduce")
    assert "[1,0]<stdout>:# Out of bounds values : 0 OK" in output(namespace, "reduce")


def test_a_job_fails_with_the_exit_code_of_the_first_rank_that_fails(namespace: Namespace) -> None:
    namespace.domain("train")
    apply(
        namespace, small_job("fail", "train", "mpirun", "sh", "-c", "test $RANK != 2 || exit 7; exec sleep 10000")
    )
    until_job(namespace, "Failed", "fail")
    assert "mpirun: rank 2 on fail-worker-1 exited with code 7; the job of 4 ranks was terminated" in output(
        namespace, "fail"
    )
    (launcher,) = namespace.get("pods", "-l", "training.kubeflow.org/job-role=launcher")["items"]
    assert launcher["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
