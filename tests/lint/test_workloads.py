"""Which pods a workload has: the templates of each kind, their roles and their numbers."""

from typing import Any

import pytest

from imex_dra.lint.values import from_plain
from imex_dra.lint.workloads import PER_NODE, PLACES, templates_of

POD: dict[str, Any] = {"spec": {"containers": [{"name": "main"}]}}
EMPTY: dict[str, Any] = {"spec": {}}


def replicas(number: int) -> dict[str, Any]:
    return {"replicas": number, "template": POD}


RAY: dict[str, Any] = {
    "headGroupSpec": {"template": POD},
    "workerGroupSpecs": [
        {"groupName": "a", "replicas": 3, "numOfHosts": 4, "template": POD},
        {"groupName": "b", "template": POD},
    ],
}
RAY_TEMPLATES: list[tuple[str, int | None]] = [("", 1), ("a", 12), ("b", 1)]

CASES: list[tuple[str, dict[str, Any], list[tuple[str, int | None]]]] = [
    ("Deployment", replicas(3), [("", 3)]),
    ("Deployment", {"template": POD}, [("", 1)]),
    ("Deployment", {"replicas": "3", "template": POD}, [("", 1)]),
    ("Deployment", {"replicas": -3, "template": POD}, [("", 0)]),
    ("ReplicaSet", replicas(2), [("", 2)]),
    ("ReplicationController", replicas(2), [("", 2)]),
    ("StatefulSet", replicas(2), [("", 2)]),
    ("DaemonSet", {"template": POD}, [("", PER_NODE)]),
    ("Job", {"parallelism": 5, "template": POD}, [("", 5)]),
    ("CronJob", {"jobTemplate": {"spec": {"parallelism": 5, "template": POD}}}, [("", 5)]),
    (
        "JobSet",
        {
            "replicatedJobs": [
                {"name": "a", "replicas": 2, "template": {"spec": {"parallelism": 3, "template": POD}}},
                {"name": "b", "template": {"spec": {"template": POD}}},
            ]
        },
        [("a", 6), ("b", 1)],
    ),
    (
        "LeaderWorkerSet",
        {"replicas": 9, "leaderWorkerTemplate": {"size": 4, "workerTemplate": POD}},
        [("worker", 4)],
    ),
    (
        "LeaderWorkerSet",
        {"leaderWorkerTemplate": {"size": 4, "leaderTemplate": POD, "workerTemplate": POD}},
        [("leader", 1), ("worker", 3)],
    ),
    (
        "MPIJob",
        {"mpiReplicaSpecs": {"Launcher": {"template": POD}, "Worker": replicas(18)}},
        [("Launcher", 1), ("Worker", 18)],
    ),
    (
        "PyTorchJob",
        {"pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(7)}},
        [("Master", 1), ("Worker", 7)],
    ),
    ("TFJob", {"tfReplicaSpecs": {"Worker": replicas(7)}}, [("Worker", 7)]),
    ("JAXJob", {"jaxReplicaSpecs": {"Worker": replicas(7)}}, [("Worker", 7)]),
    ("RayCluster", RAY, RAY_TEMPLATES),
    ("RayJob", {"rayClusterSpec": RAY}, RAY_TEMPLATES),
    ("RayService", {"rayClusterConfig": RAY}, RAY_TEMPLATES),
    ("Deployment", {"template": EMPTY}, []),
    ("Job", {"tasks": [{"name": "t", "replicas": 3, "template": POD}]}, [("t", 3)]),
    ("AnyKind", {"a": [{"b": {"name": "x", "replicas": 2, "template": POD}}]}, [("x", 2)]),
    ("ConfigMap", {"template": "text"}, []),
]


@pytest.mark.parametrize(("kind", "spec", "expected"), CASES)
def test_every_kind_has_its_templates(
    kind: str, spec: dict[str, Any], expected: list[tuple[str, int | None]]
) -> None:
    found = templates_of(kind, from_plain({"kind": kind, "spec": spec}))
    assert [(template.role, template.pods) for template in found] == expected


def test_every_known_kind_is_tested() -> None:
    assert {kind for kind, _, expected in CASES if expected} >= {*PLACES, "LeaderWorkerSet"} - {"Pod"}


def test_a_pod_is_its_own_template() -> None:
    (template,) = templates_of("Pod", from_plain(POD))
    assert template.value.plain() == POD
    assert template.pods == 1
