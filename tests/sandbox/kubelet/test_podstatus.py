"""The status of a pod for given container runs has the values and messages of the real kubelet."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from imex_sandbox.kubelet.podstate import (
    ContainerRun,
    ContainerRuns,
    PodState,
    Termination,
    WaitingReason,
    lost_run,
)
from imex_sandbox.kubelet.podstatus import pod_status
from imex_sandbox.kubelet.views.pod import (
    Container,
    ContainerStatus,
    Pod,
    PodCondition,
    PodMeta,
    PodSpec,
    PodStatus,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def make_pod(policy: str = "Always", *, init: tuple[str, ...] = (), main: tuple[str, ...] = ("c",)) -> Pod:
    return Pod(
        PodMeta(name="p", namespace="ns", uid="u", generation=1),
        PodSpec(
            node_name="n",
            restart_policy=policy,
            init_containers=tuple(Container(name, "image") for name in init),
            containers=tuple(Container(name, "image") for name in main),
        ),
    )


def run(code: int | None = None, attempt: int = 0, *, ago: float = 100.0) -> tuple[ContainerRun, ...]:
    end = None if code is None else Termination(code, NOW - timedelta(seconds=ago))
    return (ContainerRun("imex-sandbox://x", attempt, NOW - timedelta(seconds=ago + 1), end),)


def status_of(pod: Pod, runs: ContainerRuns, **more: Any) -> Any:
    return pod_status(pod, PodState(now=NOW, runs=runs, **more))


def conditions(status: Any) -> dict[str, tuple[str, str | None]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


@pytest.mark.parametrize(
    ("pod", "runs", "terminated", "phase"),
    [
        (make_pod(), {}, False, "Pending"),
        (make_pod(), {"c": run()}, False, "Running"),
        (make_pod(), {"c": run(1)}, False, "Running"),
        (make_pod(main=("c", "d")), {"c": run()}, False, "Pending"),
        (make_pod("Never"), {"c": run(0)}, False, "Running"),
        (make_pod("Never"), {"c": run(0)}, True, "Succeeded"),
        (make_pod("Never"), {"c": run(1)}, True, "Failed"),
        (make_pod("OnFailure"), {"c": run(1)}, False, "Running"),
        (make_pod("Never", main=("c", "d")), {"c": run(0), "d": run(2)}, True, "Failed"),
        (make_pod(), {"c": run(0)}, True, "Succeeded"),
        (make_pod(), {}, True, "Failed"),
        (make_pod(init=("i",)), {"i": run()}, False, "Pending"),
        (make_pod("Never", init=("i",)), {"i": run(1)}, False, "Pending"),
        (make_pod("Never", init=("i",)), {"i": run(1)}, True, "Failed"),
    ],
)
def test_the_phase_becomes_terminal_only_after_the_pod_is_terminated_on_its_node(
    pod: Pod, runs: ContainerRuns, terminated: bool, phase: str
) -> None:
    assert status_of(pod, runs, terminated=terminated)["phase"] == phase


def test_an_unready_pod_names_its_unready_containers() -> None:
    status = status_of(make_pod(main=("c", "d")), {"c": run()})
    (ready,) = [c for c in status["conditions"] if c["type"] == "Ready"]
    assert ready["message"] == "containers with unready status: [d]"
    assert conditions(status)["ContainersReady"] == ("False", "ContainersNotReady")


def test_a_pod_is_initializing_while_its_init_containers_run() -> None:
    status = status_of(make_pod(init=("i",)), {"i": run()}, has_sandbox=True)
    assert conditions(status)["Initialized"] == ("False", "ContainersNotInitialized")
    assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}


def test_a_condition_keeps_its_last_transition_time() -> None:
    known = PodCondition("Ready", "True", "2020-01-01T00:00:00Z")
    pod = Pod(make_pod().metadata, make_pod().spec, PodStatus(conditions=(known,)))
    times = {c["type"]: c["lastTransitionTime"] for c in status_of(pod, {"c": run()})["conditions"]}
    assert times["Ready"] == "2020-01-01T00:00:00Z"
    assert times["ContainersReady"] == "2026-01-01T12:00:00Z"


def test_a_container_in_backoff_reports_its_last_termination() -> None:
    (status,) = status_of(make_pod(), {"c": run(3, attempt=2, ago=5)})["containerStatuses"]
    assert status["state"]["waiting"] == {
        "reason": "CrashLoopBackOff",
        "message": "back-off 20s restarting failed container=c pod=p_ns(u)",
    }
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert status["restartCount"] == 2


def test_a_container_that_cannot_be_created_reports_why() -> None:
    waiting = {"c": WaitingReason("CreateContainerError", "no such device")}
    (status,) = status_of(make_pod(), {}, waiting=waiting)["containerStatuses"]
    assert status["state"] == {"waiting": {"reason": "CreateContainerError", "message": "no such device"}}


@pytest.mark.parametrize(("probe", "started"), [("unstarted", False), ("unready", True)])
def test_a_container_is_not_ready_before_its_probes_succeed(probe: str, started: bool) -> None:
    status = status_of(make_pod(main=("c", "d")), {"c": run(), "d": run()}, **{probe: frozenset("c")})
    first, second = status["containerStatuses"]
    assert (first["ready"], first["started"]) == (False, started)
    assert (second["ready"], second["started"]) == (True, True)
    assert conditions(status)["Ready"] == ("False", "ContainersNotReady")


def test_a_pod_is_not_initialized_before_its_sidecar_has_started() -> None:
    sidecar = Container("s", "image", restart_policy="Always")
    pod = Pod(make_pod().metadata, PodSpec(init_containers=(sidecar,), containers=make_pod().spec.containers))
    assert conditions(status_of(pod, {"s": run()}, unstarted=frozenset("s")))["Initialized"][0] == "False"
    assert conditions(status_of(pod, {"s": run()}))["Initialized"][0] == "True"


def test_a_container_lost_in_a_reboot_is_reported_as_killed() -> None:
    known = ContainerStatus("c", "imex-sandbox://x", restart_count=2)
    status = status_of(make_pod("Never"), {"c": (lost_run(known, NOW),)}, terminated=True)
    (container,) = status["containerStatuses"]
    terminated = container["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (137, "ContainerStatusUnknown")
    assert (container["containerID"], container["restartCount"]) == ("imex-sandbox://x", 2)
