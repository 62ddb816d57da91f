"""MPIJobs of the embedded control plane, without kubelets: what is created, and what the status says.

The suite in tests/sandbox/mpi/racks runs with kubelets, on the real MPI Operator, too.
"""

from typing import Any

import pytest

from imex_sandbox.embedded import mpijobs
from imex_sandbox.embedded.kinds import CONFIG_MAPS, EVENTS, JOBS, PODS, SECRETS, SERVICES, Kind
from imex_sandbox.embedded.mpijobs import follow_mpi_jobs
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.server import Api
from imex_sandbox.embedded.statuses import ApiError
from imex_sandbox.embedded.storage import Key
from imex_sandbox.embedded.workloads import follow_jobs


@pytest.fixture
def objects() -> Objects:
    api = Api()
    mpijobs.install(api.objects)
    return api.objects


def kind(objects: Objects) -> Kind:
    found = objects.kinds.find("kubeflow.org", "v2beta1", "mpijobs")
    assert found
    return found


def create(objects: Objects, **spec: Any) -> None:
    launcher = {"template": {"spec": {"containers": [{"name": "main", "image": "any", "command": ["mpirun"]}]}}}
    worker = {
        "replicas": 2,
        "template": {
            "metadata": {"labels": {"own": "label"}},
            "spec": {"containers": [{"name": "main", "image": "any", "env": [{"name": "A", "value": "1"}]}]},
        },
    }
    body = {"slotsPerWorker": 4, "mpiReplicaSpecs": {"Launcher": launcher, "Worker": worker}, **spec}
    objects.create(kind(objects), "default", {"metadata": {"name": "train"}, "spec": body}, "test")


def get(objects: Objects, what: Kind, name: str) -> dict[str, Any]:
    return objects.get(what, Key("default", name)).document


def names(objects: Objects, what: Kind) -> list[str]:
    return [key.name for key, _ in objects.storage.all(what, "default")]


def set_phase(objects: Objects, name: str, phase: str) -> None:
    conditions = [{"type": "Ready", "status": "True" if phase == "Running" else "False"}]
    status = {"phase": phase, "conditions": conditions}
    objects.patch(PODS, Key("default", name), {"status": status}, subresource="status")


def conditions(objects: Objects) -> dict[str, str]:
    status = get(objects, kind(objects), "train")["status"]
    return {one["type"]: one["status"] for one in status["conditions"]}


def follow(objects: Objects) -> str:
    """Returns the name of the launcher's newest pod."""
    for _ in range(3):
        follow_mpi_jobs(objects)
        follow_jobs(objects)
    return next((name for name in names(objects, PODS) if "launcher" in name), "")


def test_a_job_has_workers_a_launcher_a_hostfile_a_key_and_a_service(objects: Objects) -> None:
    create(objects)
    launcher = follow(objects)
    assert names(objects, PODS) == [launcher, "train-worker-0", "train-worker-1"]
    assert names(objects, JOBS) == ["train-launcher"]
    hostfile = get(objects, CONFIG_MAPS, "train-config")["data"]["hostfile"]
    assert hostfile.splitlines() == [f"train-worker-{n}.train.default.svc slots=4" for n in range(2)]
    assert get(objects, SERVICES, "train")["spec"]["clusterIP"] == "None"
    key = get(objects, SECRETS, "train-ssh")["data"]
    worker = get(objects, PODS, "train-worker-1")
    (container,) = worker["spec"]["containers"]
    assert container["command"] == ["/usr/sbin/sshd", "-De"]
    assert {one["name"]: one["value"] for one in container["env"]} == {"A": "1", "K_MPI_JOB_ROLE": "worker"}
    assert worker["metadata"]["labels"]["own"] == "label"
    assert worker["metadata"]["labels"]["training.kubeflow.org/replica-index"] == "1"
    (first,) = get(objects, PODS, launcher)["spec"]["containers"]
    assert {mount["mountPath"] for mount in first["volumeMounts"]} == {"/etc/mpi", "/root/.ssh"}
    follow(objects)
    assert get(objects, SECRETS, "train-ssh")["data"] == key  # a new key would end the connection to workers


def test_the_launcher_can_wait_for_its_workers(objects: Objects) -> None:
    create(objects, launcherCreationPolicy="WaitForWorkersReady")
    assert follow(objects) == ""
    for worker in ("train-worker-0", "train-worker-1"):
        set_phase(objects, worker, "Running")
    assert follow(objects).startswith("train-launcher-")


def test_a_job_succeeds_with_its_launcher_and_its_workers_are_deleted(objects: Objects) -> None:
    create(objects, runPolicy={"cleanPodPolicy": "Running"})
    launcher = follow(objects)
    assert conditions(objects) == {"Created": "True"}
    for pod in (launcher, "train-worker-0", "train-worker-1"):
        set_phase(objects, pod, "Running")
    follow(objects)
    assert conditions(objects) == {"Created": "True", "Running": "True"}
    set_phase(objects, launcher, "Succeeded")
    follow(objects)
    assert conditions(objects) == {"Created": "True", "Running": "False", "Succeeded": "True"}
    assert names(objects, PODS) == [launcher]
    reasons = [one.document["reason"] for _, one in objects.storage.all(EVENTS, "default")]
    assert sorted(reasons) == ["MPIJobCreated", "MPIJobRunning", "MPIJobSucceeded"]


def test_a_job_fails_when_its_launcher_has_failed_too_often(objects: Objects) -> None:
    create(objects, runPolicy={"backoffLimit": 0})
    set_phase(objects, follow(objects), "Failed")
    follow(objects)
    assert conditions(objects) == {"Created": "True", "Failed": "True"}
    (failed,) = [
        one for one in get(objects, kind(objects), "train")["status"]["conditions"] if one["type"] == "Failed"
    ]
    assert failed["reason"] == "BackoffLimitExceeded"
    assert "train-worker-0" in names(objects, PODS)  # cleanPodPolicy is None


def test_restarts_of_the_launcher_count_as_failures(objects: Objects) -> None:
    create(objects, runPolicy={"backoffLimit": 2})
    launcher = follow(objects)
    for restarts, expected in ((1, {"Created": "True"}), (2, {"Created": "True", "Failed": "True"})):
        container = {"name": "main", "restartCount": restarts, "ready": True, "image": "any", "imageID": ""}
        status = {"phase": "Running", "containerStatuses": [container]}
        objects.patch(PODS, Key("default", launcher), {"status": status}, subresource="status")
        follow(objects)
        assert conditions(objects) == expected
    assert launcher not in names(objects, PODS)


def test_a_template_that_is_no_pod_is_reported_as_an_event(objects: Objects) -> None:
    template = {"template": {"spec": {"containers": [{"image": "any"}]}}}
    create(objects, mpiReplicaSpecs={"Launcher": template, "Worker": {"replicas": 1, **template}})
    follow(objects)
    notes = [one.document["note"] for _, one in objects.storage.all(EVENTS, "default")]
    assert any("spec.containers[0].name: Required value" in note for note in notes), notes


@pytest.mark.parametrize(
    "spec", [{"mpiImplementation": "Intel"}, {"runPolicy": {"suspend": True}}, {"runLauncherAsWorker": True}]
)
def test_what_is_not_supported_is_refused(objects: Objects, spec: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="Unsupported value"):
        create(objects, **spec)


def test_a_malformed_job_has_an_event_and_does_not_stop_others(objects: Objects) -> None:
    malformed = {"template": {"spec": {"containers": {"name": "main"}}}}
    metadata = {"name": "a-malformed-one"}
    spec = {"mpiReplicaSpecs": {"Launcher": malformed}}
    objects.create(kind(objects), "default", {"metadata": metadata, "spec": spec}, "test")
    create(objects)
    assert follow(objects)
    events = [one.document for _, one in objects.storage.all(EVENTS, "default")]
    (event,) = [one for one in events if one["regarding"]["name"] == metadata["name"]]
    assert (event["type"], event["reason"]) == ("Warning", "FailedSync")
    assert "cannot handle this object" in event["note"]
