"""Decisions of a kubelet's own API: which log is shown, who is let in, how an end is told."""

from typing import Any

import pytest

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.kubelet.endpoint import attempt_to_show, subject
from imex_dra.sandbox.kubelet.remotecommand import status_of_end, status_of_failure
from imex_dra.sandbox.kubelet.views.pod import Pod, PodMeta
from imex_dra.sandbox.kubelet.views.podstatus import (
    ContainerState,
    ContainerStatus,
    PodStatus,
    Running,
    Terminated,
    Waiting,
)

RUNNING = ContainerState(running=Running())
ENDED = ContainerState(terminated=Terminated())
BACKING_OFF = ContainerState(waiting=Waiting("CrashLoopBackOff"))
NOTHING = ContainerState()


def pod(*statuses: ContainerStatus) -> Pod:
    return Pod(PodMeta(name="p", namespace="ns"), status=PodStatus(container_statuses=statuses))


def status(restarts: int, state: ContainerState, last: ContainerState = NOTHING) -> ContainerStatus:
    return ContainerStatus("c", restart_count=restarts, state=state, last_state=last)


@pytest.mark.parametrize(
    ("known", "now", "before"),
    [
        (status(0, RUNNING), 0, None),
        (status(0, ENDED), 0, None),
        (status(2, RUNNING, ENDED), 2, 1),
        (status(2, BACKING_OFF, ENDED), 2, 2),
        (status(2, ENDED, ENDED), 2, 1),
    ],
)
def test_the_run_that_a_log_is_of(known: ContainerStatus, now: int, before: int | None) -> None:
    assert attempt_to_show(pod(known), "c", previous=False) == now
    if before is None:
        with pytest.raises(Rejected, match=r'^previous terminated container "c" in pod "p" not found$'):
            attempt_to_show(pod(known), "c", previous=True)
    else:
        assert attempt_to_show(pod(known), "c", previous=True) == before


@pytest.mark.parametrize(
    ("statuses", "reason"),
    [
        ((), "ContainerCreating"),
        ((status(0, ContainerState(waiting=Waiting("PodInitializing"))),), "PodInitializing"),
    ],
)
def test_before_the_first_run(statuses: tuple[ContainerStatus, ...], reason: str) -> None:
    with pytest.raises(Rejected, match=f'^container "c" in pod "p" is waiting to start: {reason}$'):
        attempt_to_show(pod(*statuses), "c", previous=False)


def test_a_certificate_names_a_user_and_groups() -> None:
    parts = ((("organizationName", "system:masters"),), (("organizationName", "b"),), (("commonName", "me"),))
    assert subject({"subject": parts}) == ("me", {"system:masters", "b"})
    assert subject({}) == ("", set())


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (status_of_end(0), {"status": "Success"}),
        (status_of_end(3), {"status": "Failure", "reason": "NonZeroExitCode"}),
        (status_of_failure("why"), {"status": "Failure", "reason": "InternalError", "code": 500}),
    ],
)
def test_how_an_end_is_told(told: dict[str, Any], expected: dict[str, Any]) -> None:
    assert told.items() >= expected.items()
