"""Decisions of the kubelet's own API: which log to show, who a client is, and how exec reports its result."""

from typing import Any

import pytest

from imex_dra.base.errors import Rejected
from imex_sandbox.kubelet.remotecommand import exit_status, failure_status
from imex_sandbox.kubelet.server import attempt_to_show, certificate_subject
from imex_sandbox.kubelet.views.pod import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodMeta,
    PodStatus,
)

RUNNING = ContainerState(running=ContainerStateRunning())
TERMINATED = ContainerState(terminated=ContainerStateTerminated())
BACKING_OFF = ContainerState(waiting=ContainerStateWaiting("CrashLoopBackOff"))
NO_STATE = ContainerState()
INITIALIZING = ContainerState(waiting=ContainerStateWaiting("PodInitializing"))


def make_pod(*statuses: ContainerStatus) -> Pod:
    return Pod(PodMeta(name="p", namespace="ns"), status=PodStatus(container_statuses=statuses))


def status(restarts: int, state: ContainerState, last_state: ContainerState = NO_STATE) -> ContainerStatus:
    return ContainerStatus("c", restart_count=restarts, state=state, last_state=last_state)


@pytest.mark.parametrize(
    ("known", "current", "previous"),
    [
        (status(0, RUNNING), 0, None),
        (status(0, TERMINATED), 0, None),
        (status(2, RUNNING, TERMINATED), 2, 1),
        (status(2, BACKING_OFF, TERMINATED), 2, 2),
        (status(2, TERMINATED, TERMINATED), 2, 1),
    ],
)
def test_a_log_is_that_of_the_current_or_previous_run(
    known: ContainerStatus, current: int, previous: int | None
) -> None:
    assert attempt_to_show(make_pod(known), "c", previous=False) == current
    if previous is None:
        with pytest.raises(Rejected, match=r'^previous terminated container "c" in pod "p" not found$'):
            attempt_to_show(make_pod(known), "c", previous=True)
    else:
        assert attempt_to_show(make_pod(known), "c", previous=True) == previous


@pytest.mark.parametrize(
    ("statuses", "reason"), [((), "ContainerCreating"), ((status(0, INITIALIZING),), "PodInitializing")]
)
def test_a_container_without_a_run_has_no_log(statuses: tuple[ContainerStatus, ...], reason: str) -> None:
    with pytest.raises(Rejected, match=f'^container "c" in pod "p" is waiting to start: {reason}$'):
        attempt_to_show(make_pod(*statuses), "c", previous=False)


def test_a_certificate_names_a_user_and_its_groups() -> None:
    parts = ((("organizationName", "system:masters"),), (("organizationName", "b"),), (("commonName", "me"),))
    assert certificate_subject({"subject": parts}) == ("me", {"system:masters", "b"})
    assert certificate_subject({}) == ("", set())


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (exit_status(0), {"status": "Success"}),
        (exit_status(3), {"status": "Failure", "reason": "NonZeroExitCode"}),
        (failure_status("why"), {"status": "Failure", "reason": "InternalError", "code": 500}),
    ],
)
def test_the_result_of_exec_is_reported_as_a_status(status: dict[str, Any], expected: dict[str, Any]) -> None:
    assert status.items() >= expected.items()
