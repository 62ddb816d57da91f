"""Probes that run a command in the container: what they change, and what is said about it."""

from typing import Any

import pytest

from tests.kubelet.console import Console
from tests.kubelet.implementations import with_processes
from tests.kubelet.stage import Pod, Stage, container

pytestmark = [with_processes, pytest.mark.slow]

STAYS = "trap 'exit 5' TERM; sleep 10000 & wait"


def command(*words: str, **more: Any) -> dict[str, Any]:
    """A machine may be busy: only where a test is about that, a probe has no time."""
    return {"exec": {"command": list(words)}, "periodSeconds": 1, "timeoutSeconds": 30, **more}


def watched(stage: Stage, script: str, policy: str = "Always", **probes: Any) -> Pod:
    """With a directory where a test can say what the probes find, and all the time to end by itself."""
    one = container(script, volumeMounts=[{"name": "s", "mountPath": "/s"}], **probes)
    volumes = [{"name": "s", "emptyDir": {}}]
    return stage.pod(containers=[one], volumes=volumes, restartPolicy=policy, terminationGracePeriodSeconds=600)


def until_said(pod: Pod, reason: str, words: str) -> None:
    pod.until(lambda: any(words in message for message in pod.events(reason)))


def unready(pod: Pod) -> str:
    (ready,) = [c for c in pod.status["conditions"] if c["type"] == "Ready"]
    return str(ready.get("message", ""))


def execute(console: Console, pod: Pod, script: str) -> None:
    said = console.execute(pod, "sh", "-c", script)
    assert said.code == 0, said


def test_ready_as_long_as_the_probe_succeeds(stage: Stage, console: Console) -> None:
    look = command("sh", "-c", "test -e /s/ready || { echo not yet; exit 1; }", failureThreshold=2)
    pod = watched(stage, STAYS, readinessProbe=look)
    until_said(pod, "Unhealthy", "Readiness probe failed: not yet\n")
    pod.until(lambda: pod.container().get("ready") is False and pod.condition("Ready") == "False")
    execute(console, pod, "touch /s/ready")
    pod.until(lambda: pod.container()["ready"] and pod.condition("Ready") == "True")
    execute(console, pod, "rm /s/ready")
    pod.until(lambda: not pod.container()["ready"] and unready(pod) == "containers with unready status: [c]")
    assert pod.container()["restartCount"] == 0


def test_a_container_that_is_not_alive_is_restarted(stage: Stage, console: Console) -> None:
    look = command("test", "-e", "/s/fine", failureThreshold=2)
    pod = watched(stage, f"touch /s/fine; {STAYS}", livenessProbe=look)
    pod.until_running()
    execute(console, pod, "rm /s/fine")
    pod.until(lambda: pod.container()["restartCount"] > 0 and pod.state() == "running")
    assert pod.container()["lastState"]["terminated"]["exitCode"] == 5
    until_said(pod, "Unhealthy", "Liveness probe failed: ")
    until_said(pod, "Killing", "Container c failed liveness probe, will be restarted")


def test_one_that_does_not_listen_is_killed_after_the_probe_s_own_grace(stage: Stage) -> None:
    look = command("false", failureThreshold=1, terminationGracePeriodSeconds=1)
    pod = watched(stage, "sleep 10000", livenessProbe=look)
    pod.until(lambda: "terminated" in pod.container().get("lastState", {}))
    assert pod.container()["lastState"]["terminated"]["exitCode"] == 137


def test_one_that_is_never_restarted_is_the_end_of_its_pod(stage: Stage) -> None:
    pod = watched(stage, STAYS, "Never", livenessProbe=command("false", failureThreshold=1))
    pod.until_phase("Failed")
    assert pod.container()["state"]["terminated"]["exitCode"] == 5
    until_said(pod, "Killing", "Stopping container c")


def test_the_other_probes_wait_for_the_startup(stage: Stage, console: Console) -> None:
    probes: dict[str, Any] = {
        "startupProbe": command("test", "-e", "/s/up", failureThreshold=1000),
        "livenessProbe": command("sh", "-c", "echo dead; exit 1", failureThreshold=1),
    }
    pod = watched(stage, STAYS, **probes)
    until_said(pod, "Unhealthy", "Startup probe failed: ")
    pod.until(lambda: pod.state() == "running")
    status = pod.container()
    assert (status["started"], status["ready"], status["restartCount"]) == (False, False, 0)
    assert not [message for message in pod.events("Unhealthy") if "Liveness" in message]
    execute(console, pod, "touch /s/up")
    until_said(pod, "Unhealthy", "Liveness probe failed: dead\n")
    pod.until(lambda: pod.container()["restartCount"] > 0)


def test_a_container_that_never_comes_up_is_restarted(stage: Stage) -> None:
    pod = watched(stage, STAYS, startupProbe=command("false", failureThreshold=1))
    until_said(pod, "Killing", "Container c failed startup probe, will be restarted")
    pod.until(lambda: pod.container()["restartCount"] > 0)


def test_a_probe_that_takes_too_long_or_does_not_exist(stage: Stage) -> None:
    pod = stage.pod(
        containers=[
            container(STAYS, name="slow", readinessProbe=command("sleep", "10", timeoutSeconds=1)),
            container(STAYS, name="none", readinessProbe=command("no-such-program")),
        ]
    )
    until_said(pod, "Unhealthy", 'Readiness probe failed: command timed out: "sleep 10" timed out after 1s')
    until_said(pod, "Unhealthy", "Readiness probe errored and resulted in unknown state: ")
    until_said(pod, "Unhealthy", 'exec: "no-such-program": executable file not found in $PATH')
    pod.until(lambda: pod.condition("Ready") == "False")


def test_a_pod_that_goes_says_which_containers_are_stopped(stage: Stage) -> None:
    held = {"finalizers": ["imex-dra.io/held-by-a-test"]}
    pod = stage.pod(metadata=held)
    pod.until_running()
    pod.delete()
    until_said(pod, "Killing", "Stopping container c")
