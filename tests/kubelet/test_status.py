"""What a pod's status says, for what ran: the same words as the real kubelet's."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from imex_dra.sandbox.kubelet.runs import End, Run, Runs, Waiting, lost
from imex_dra.sandbox.kubelet.situation import Situation
from imex_dra.sandbox.kubelet.status import status
from imex_dra.sandbox.kubelet.views.container import Container
from imex_dra.sandbox.kubelet.views.pod import Pod, PodMeta, PodSpec
from imex_dra.sandbox.kubelet.views.podstatus import ContainerStatus, PodCondition, PodStatus

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pod(policy: str = "Always", *, init: tuple[str, ...] = (), main: tuple[str, ...] = ("c",)) -> Pod:
    containers = tuple(Container(name, "image") for name in main)
    inits = tuple(Container(name, "image") for name in init)
    return Pod(
        PodMeta(name="p", namespace="ns", uid="u", generation=1),
        PodSpec("n", policy, 30, "", "", inits, containers),
    )


def run(code: int | None = None, attempt: int = 0, *, ago: float = 100.0) -> tuple[Run, ...]:
    end = None if code is None else End(code, NOW - timedelta(seconds=ago))
    return (Run("imex-sandbox://x", attempt, NOW - timedelta(seconds=ago + 1), end),)


def said(subject: Pod, runs: Runs, **more: Any) -> Any:
    return status(subject, Situation(now=NOW, runs=runs, **more))


def verdicts(told: Any) -> dict[str, tuple[str, str | None]]:
    return {c["type"]: (c["status"], c["reason"]) for c in told["conditions"]}


@pytest.mark.parametrize(
    ("subject", "runs", "ended", "phase"),
    [
        (pod(), {}, False, "Pending"),
        (pod(), {"c": run()}, False, "Running"),
        (pod(), {"c": run(1)}, False, "Running"),
        (pod(main=("c", "d")), {"c": run()}, False, "Pending"),
        (pod("Never"), {"c": run(0)}, False, "Running"),
        (pod("Never"), {"c": run(0)}, True, "Succeeded"),
        (pod("Never"), {"c": run(1)}, True, "Failed"),
        (pod("OnFailure"), {"c": run(1)}, False, "Running"),
        (pod("Never", main=("c", "d")), {"c": run(0), "d": run(2)}, True, "Failed"),
        (pod(), {"c": run(0)}, True, "Succeeded"),
        (pod(), {}, True, "Failed"),
        (pod(init=("i",)), {"i": run()}, False, "Pending"),
        (pod("Never", init=("i",)), {"i": run(1)}, False, "Pending"),
        (pod("Never", init=("i",)), {"i": run(1)}, True, "Failed"),
    ],
)
def test_a_pod_is_over_for_everybody_only_when_it_is_on_its_node(
    subject: Pod, runs: Runs, ended: bool, phase: str
) -> None:
    assert said(subject, runs, ended=ended)["phase"] == phase


def test_an_unready_pod_names_its_containers() -> None:
    told = said(pod(main=("c", "d")), {"c": run()})
    (ready,) = [c for c in told["conditions"] if c["type"] == "Ready"]
    assert ready["message"] == "containers with unready status: [d]"
    assert verdicts(told)["ContainersReady"] == ("False", "ContainersNotReady")


def test_before_the_init_containers_are_through() -> None:
    told = said(pod(init=("i",)), {"i": run()}, sandbox=True)
    assert verdicts(told)["Initialized"] == ("False", "ContainersNotInitialized")
    assert told["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    known = PodCondition("Ready", "True", "2020-01-01T00:00:00Z")
    before = Pod(pod().metadata, pod().spec, PodStatus(conditions=(known,)))
    times = {c["type"]: c["lastTransitionTime"] for c in said(before, {"c": run()})["conditions"]}
    assert times["Ready"] == "2020-01-01T00:00:00Z"
    assert times["ContainersReady"] == "2026-01-01T12:00:00Z"


def test_backing_off_shows_the_last_end() -> None:
    (told,) = said(pod(), {"c": run(3, attempt=2, ago=5)})["containerStatuses"]
    waiting = told["state"]["waiting"]
    assert waiting == {
        "reason": "CrashLoopBackOff",
        "message": "back-off 20s restarting failed container=c pod=p_ns(u)",
    }
    assert told["lastState"]["terminated"]["exitCode"] == 3
    assert told["restartCount"] == 2


def test_what_keeps_a_container_from_starting_is_said() -> None:
    trouble = {"c": Waiting("CreateContainerError", "no such device")}
    (told,) = said(pod(), {}, waiting=trouble)["containerStatuses"]
    assert told["state"] == {"waiting": {"reason": "CreateContainerError", "message": "no such device"}}


def test_not_ready_before_it_has_started_nor_while_its_probe_fails() -> None:
    for what in ({"unstarted": frozenset("c")}, {"unready": frozenset("c")}):
        told = said(pod(main=("c", "d")), {"c": run(), "d": run()}, **what)
        first, second = told["containerStatuses"]
        assert (first["ready"], first["started"]) == (False, "unready" in what)
        assert (second["ready"], second["started"]) == (True, True)
        assert verdicts(told)["Ready"] == ("False", "ContainersNotReady")


def test_a_sidecar_that_has_not_started_keeps_the_pod_from_being_initialised() -> None:
    sidecar = Container("s", "image", restart_policy="Always")
    subject = Pod(pod().metadata, PodSpec(init_containers=(sidecar,), containers=pod().spec.containers))
    assert verdicts(said(subject, {"s": run()}, unstarted=frozenset("s")))["Initialized"][0] == "False"
    assert verdicts(said(subject, {"s": run()}))["Initialized"][0] == "True"


def test_a_container_that_went_with_its_machine_is_told_as_killed() -> None:
    known = ContainerStatus("c", "imex-sandbox://x", restart_count=2)
    (told,) = said(pod("Never"), {"c": (lost(known, NOW),)}, ended=True)["containerStatuses"]
    ended = told["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "ContainerStatusUnknown")
    assert (told["containerID"], told["restartCount"]) == ("imex-sandbox://x", 2)
