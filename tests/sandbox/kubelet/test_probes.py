"""Exec probes change the status of a container, restart it, and record Events."""

from typing import Any

import pytest

from tests.sandbox.kubelet.fixture import KubeletFixture, Pod, container
from tests.sandbox.kubelet.implementations import with_processes
from tests.sandbox.kubelet.kubectl import Kubectl

pytestmark = [with_processes, pytest.mark.slow]

RUN_UNTIL_SIGTERM = "trap 'exit 5' TERM; touch /s/trapped; sleep 10000 & wait"

FAIL = ("sh", "-c", "until test -e /s/trapped; do sleep 0.1; done; exit 1")
"""A probe that fails, but not before the container handles SIGTERM: pid 1 would ignore it for the grace period."""


def exec_probe(*command: str, **more: Any) -> dict[str, Any]:
    """Its timeout is generous, because the machine may be busy; a test about timeouts sets its own."""
    return {"exec": {"command": list(command)}, "periodSeconds": 1, "timeoutSeconds": 30, **more}


def probed_pod(node: KubeletFixture, script: str, policy: str = "Always", **probes: Any) -> Pod:
    """With a volume at /s, through which a test controls the probes, and a long grace period."""
    probed = container(script, volumeMounts=[{"name": "s", "mountPath": "/s"}], **probes)
    volumes = [{"name": "s", "emptyDir": {}}]
    return node.pod(containers=[probed], volumes=volumes, restartPolicy=policy, terminationGracePeriodSeconds=600)


def until_event(pod: Pod, reason: str, text: str) -> None:
    pod.until(lambda: any(text in message for message in pod.events(reason)))


def ready_message(pod: Pod) -> str:
    (ready,) = [c for c in pod.status["conditions"] if c["type"] == "Ready"]
    return str(ready.get("message", ""))


def execute(kubectl: Kubectl, pod: Pod, script: str) -> None:
    output = kubectl.exec(pod, "sh", "-c", script)
    assert output.code == 0, output


def test_a_container_is_ready_while_its_readiness_probe_succeeds(node: KubeletFixture, kubectl: Kubectl) -> None:
    probe = exec_probe("sh", "-c", "test -e /s/ready || { echo not yet; exit 1; }", failureThreshold=2)
    pod = probed_pod(node, RUN_UNTIL_SIGTERM, readinessProbe=probe)
    until_event(pod, "Unhealthy", "Readiness probe failed: not yet\n")
    pod.until(lambda: pod.container().get("ready") is False and pod.condition("Ready") == "False")
    execute(kubectl, pod, "touch /s/ready")
    pod.until(lambda: pod.container()["ready"] and pod.condition("Ready") == "True")
    execute(kubectl, pod, "rm /s/ready")
    pod.until(lambda: not pod.container()["ready"] and ready_message(pod) == "containers with unready status: [c]")
    assert pod.container()["restartCount"] == 0


def test_a_container_whose_liveness_probe_fails_is_restarted(node: KubeletFixture, kubectl: Kubectl) -> None:
    probe = exec_probe("test", "-e", "/s/alive", failureThreshold=5)  # it may run before `touch` does
    pod = probed_pod(node, f"touch /s/alive; {RUN_UNTIL_SIGTERM}", livenessProbe=probe)
    pod.until_ready()
    execute(kubectl, pod, "rm /s/alive")
    pod.until(lambda: pod.container().get("restartCount", 0) > 0 and pod.state() == "running")
    assert pod.container()["lastState"]["terminated"]["exitCode"] == 5
    until_event(pod, "Unhealthy", "Liveness probe failed: ")
    until_event(pod, "Killing", "Container c failed liveness probe, will be restarted")


def test_a_container_that_ignores_sigterm_is_killed_after_the_grace_period_of_the_probe(
    node: KubeletFixture,
) -> None:
    probe = exec_probe("false", failureThreshold=1, terminationGracePeriodSeconds=1)
    pod = probed_pod(node, "sleep 10000", livenessProbe=probe)
    pod.until(lambda: "terminated" in pod.container().get("lastState", {}))
    assert pod.container()["lastState"]["terminated"]["exitCode"] == 137


def test_a_pod_fails_if_its_container_fails_the_probe_and_is_never_restarted(node: KubeletFixture) -> None:
    pod = probed_pod(node, RUN_UNTIL_SIGTERM, "Never", livenessProbe=exec_probe(*FAIL, failureThreshold=1))
    pod.until_phase("Failed")
    assert pod.terminated()["exitCode"] == 5
    until_event(pod, "Killing", "Stopping container c")


def test_liveness_is_probed_only_after_the_startup_probe_succeeds(node: KubeletFixture, kubectl: Kubectl) -> None:
    probes: dict[str, Any] = {
        "startupProbe": exec_probe("test", "-e", "/s/started", failureThreshold=1000),
        "livenessProbe": exec_probe("sh", "-c", "echo dead; exit 1", failureThreshold=1),
    }
    pod = probed_pod(node, RUN_UNTIL_SIGTERM, **probes)
    until_event(pod, "Unhealthy", "Startup probe failed: ")
    pod.until(lambda: pod.state() == "running")
    status = pod.container()
    assert (status["started"], status["ready"], status["restartCount"]) == (False, False, 0)
    assert not [message for message in pod.events("Unhealthy") if "Liveness" in message]
    execute(kubectl, pod, "touch /s/started")
    until_event(pod, "Unhealthy", "Liveness probe failed: dead\n")
    pod.until(lambda: pod.container().get("restartCount", 0) > 0)


def test_a_container_whose_startup_probe_fails_is_restarted(node: KubeletFixture) -> None:
    pod = probed_pod(node, RUN_UNTIL_SIGTERM, startupProbe=exec_probe(*FAIL, failureThreshold=1))
    until_event(pod, "Killing", "Container c failed startup probe, will be restarted")
    pod.until(lambda: pod.container().get("restartCount", 0) > 0)


def test_a_probe_that_times_out_or_does_not_exist_is_reported(node: KubeletFixture) -> None:
    pod = node.pod(
        containers=[
            container(RUN_UNTIL_SIGTERM, name="slow", readinessProbe=exec_probe("sleep", "10", timeoutSeconds=1)),
            container(RUN_UNTIL_SIGTERM, name="none", readinessProbe=exec_probe("no-such-program")),
        ]
    )
    until_event(pod, "Unhealthy", 'Readiness probe failed: command timed out: "sleep 10" timed out after 1s')
    until_event(pod, "Unhealthy", "Readiness probe errored and resulted in unknown state: ")
    until_event(pod, "Unhealthy", 'exec: "no-such-program": executable file not found in $PATH')
    pod.until(lambda: pod.condition("Ready") == "False")


def test_a_deleted_pod_records_which_containers_are_stopped(node: KubeletFixture) -> None:
    pod = node.pod(metadata={"finalizers": ["imex-dra.io/held-by-a-test"]})
    pod.until_ready()
    pod.delete()
    until_event(pod, "Killing", "Stopping container c")
