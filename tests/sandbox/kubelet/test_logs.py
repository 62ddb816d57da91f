"""`kubectl logs` shows what containers wrote, through the real API server."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.sandbox.kubelet.fixture import KubeletFixture, Pod, container
from tests.sandbox.kubelet.implementations import with_processes
from tests.sandbox.kubelet.kubectl import Kubectl
from tests.waiting import until

pytestmark = with_processes

SHARED: dict[str, Any] = {"volumeMounts": [{"name": "s", "mountPath": "/s"}]}
RUN_UNTIL_SIGTERM = "trap 'exit 0' TERM; sleep 10000 & wait"


def terminated_pod(node: KubeletFixture, script: str) -> Pod:
    pod = node.pod(containers=[container(script)], restartPolicy="Never")
    pod.until(lambda: pod.state() == "terminated")
    return pod


def test_a_log_contains_both_streams_of_a_completed_pod(node: KubeletFixture, kubectl: Kubectl) -> None:
    pod = terminated_pod(node, "echo one; sleep 1; echo two >&2; sleep 1; printf 'no newline'")
    pod.until_phase("Succeeded")
    assert kubectl.logs(pod).stdout == "one\ntwo\nno newline"


def test_output_can_be_read_while_the_container_runs(node: KubeletFixture, kubectl: Kubectl) -> None:
    pod = node.pod(containers=[container(f"echo early; {RUN_UNTIL_SIGTERM}")])
    pod.until_ready()
    until(lambda: kubectl.logs(pod).stdout == "early\n")


def test_a_log_can_be_limited_by_lines_and_bytes(node: KubeletFixture, kubectl: Kubectl) -> None:
    pod = terminated_pod(node, "for n in 1 2 3 4; do echo line $n; done")
    assert kubectl.logs(pod, "--tail=2").stdout == "line 3\nline 4\n"
    assert kubectl.logs(pod, "--tail=0").stdout == ""
    assert kubectl.logs(pod, "--tail=10").stdout.count("\n") == 4
    assert kubectl.logs(pod, "--limit-bytes=10").stdout == "line 1\nlin"


def test_a_container_that_was_not_restarted_has_no_previous_log(node: KubeletFixture, kubectl: Kubectl) -> None:
    pod = terminated_pod(node, "echo once")
    output = kubectl.logs(pod, "--previous")
    assert output.code == 1
    assert f'previous terminated container "c" in pod "{pod.name}" not found' in output.stderr


def test_a_long_line_is_shown_as_one_line_with_one_timestamp(node: KubeletFixture, kubectl: Kubectl) -> None:
    pod = terminated_pod(node, "head -c 40000 /dev/zero | tr '\\0' x; echo; echo after")
    assert kubectl.logs(pod).stdout == "x" * 40000 + "\nafter\n"
    (first, second) = kubectl.logs(pod, "--timestamps").stdout.splitlines()
    assert first.endswith(" " + "x" * 40000)
    assert second.endswith(" after")


@pytest.mark.slow
def test_lines_have_timestamps_and_can_be_selected_by_them(node: KubeletFixture, kubectl: Kubectl) -> None:
    started = datetime.now(UTC)
    pod = terminated_pod(node, "echo one; sleep 2; echo two")
    (first, second) = kubectl.logs(pod, "--timestamps").stdout.splitlines()
    times = [datetime.fromisoformat(line.split()[0]) for line in (first, second)]
    assert [line.split()[1] for line in (first, second)] == ["one", "two"]
    assert len(first.split()[0]) == len("2026-01-01T00:00:00.000000000Z")
    assert started - timedelta(seconds=1) < times[0] < times[1]
    assert times[1] - times[0] > timedelta(seconds=1.5)
    between = (times[0] + timedelta(seconds=1)).isoformat(timespec="seconds")
    assert kubectl.logs(pod, f"--since-time={between}").stdout == "two\n"
    assert kubectl.logs(pod, "--since=1h").stdout == "one\ntwo\n"
    time.sleep(1.1)
    assert kubectl.logs(pod, "--since=1s").stdout == ""


def test_a_log_is_followed_until_the_container_exits(node: KubeletFixture, kubectl: Kubectl) -> None:
    kubectl.require_exec()  # before the log is followed: it has no end then
    waiting = container("echo started; until test -e /s/go; do sleep 0.1; done; echo done", **SHARED)
    pod = node.pod(containers=[waiting], volumes=[{"name": "s", "emptyDir": {}}], restartPolicy="Never")
    pod.until(lambda: pod.state() == "running")
    with kubectl.start("logs", "-f", pod.name) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        assert kubectl.exec(pod, "touch", "/s/go").code == 0
        assert process.stdout.read() == "done\n"
        assert process.wait(60) == 0


def test_a_restarted_container_has_a_previous_log(node: KubeletFixture, kubectl: Kubectl) -> None:
    script = f"if test -e /s/once; then echo second; {RUN_UNTIL_SIGTERM}; fi; touch /s/once; echo first; exit 1"
    pod = node.pod(containers=[container(script, **SHARED)], volumes=[{"name": "s", "emptyDir": {}}])
    pod.until(lambda: pod.container().get("restartCount") == 1 and pod.state() == "running")
    until(lambda: kubectl.logs(pod).stdout == "second\n")
    assert kubectl.logs(pod, "--previous").stdout == "first\n"


def test_each_container_has_its_own_log(node: KubeletFixture, kubectl: Kubectl) -> None:
    pod = node.pod(
        initContainers=[container("echo prepared", name="first")],
        containers=[container("echo left", name="left"), container("echo right", name="right")],
        restartPolicy="Never",
    )
    pod.until_phase("Succeeded")
    assert kubectl.logs(pod, "-c", "right").stdout == "right\n"
    assert kubectl.logs(pod, "-c", "first").stdout == "prepared\n"
    lines = kubectl.logs(pod, "--all-containers", "--prefix").stdout.splitlines()
    texts = {"first": "prepared", "left": "left", "right": "right"}
    assert sorted(lines) == [f"[pod/{pod.name}/{name}] {text}" for name, text in texts.items()]


def test_a_waiting_container_reports_what_it_waits_for(node: KubeletFixture, kubectl: Kubectl) -> None:
    pod = node.pod(
        initContainers=[container(RUN_UNTIL_SIGTERM, name="first")],
        containers=[container("echo never")],
        restartPolicy="Never",
    )
    pod.until(lambda: pod.state("first") == "running")
    output = kubectl.logs(pod)
    assert output.code == 1
    assert f'container "c" in pod "{pod.name}" is waiting to start: PodInitializing' in output.stderr


def test_logs_survive_a_restart_of_the_kubelet(node: KubeletFixture, kubectl: Kubectl) -> None:
    completed = terminated_pod(node, "echo done")
    completed.until_phase("Succeeded")
    running = node.pod(containers=[container(f"echo early; {RUN_UNTIL_SIGTERM}")])
    running.until_ready()
    node.kubelet.kill_kubelet()
    node.kubelet.start_kubelet()
    until(lambda: kubectl.logs(completed).stdout == "done\n")
    until(lambda: kubectl.logs(running).stdout == "early\n")
