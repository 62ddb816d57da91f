"""`kubectl logs`: what containers wrote, by way of the real API server."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.kubelet.console import Console
from tests.kubelet.implementations import with_processes
from tests.kubelet.stage import Pod, Stage, container
from tests.sandbox.waiting import eventually

pytestmark = with_processes

SCRATCH: dict[str, Any] = {"volumeMounts": [{"name": "s", "mountPath": "/s"}]}
STAYS = "trap 'exit 0' TERM; sleep 10000 & wait"


def ended(stage: Stage, script: str) -> Pod:
    pod = stage.pod(containers=[container(script)], restartPolicy="Never")
    pod.until(lambda: pod.state() == "terminated")
    return pod


def test_both_streams_of_a_pod_that_is_over(stage: Stage, console: Console) -> None:
    pod = ended(stage, "echo one; sleep 0.2; echo two >&2; sleep 0.2; printf 'no end'")
    pod.until_phase("Succeeded")
    assert console.logs(pod).out == "one\ntwo\nno end"


def test_as_soon_as_it_is_written(stage: Stage, console: Console) -> None:
    pod = stage.pod(containers=[container(f"echo early; {STAYS}")])
    pod.until_running()
    assert eventually(lambda: console.logs(pod).out == "early\n")


def test_only_a_part(stage: Stage, console: Console) -> None:
    pod = ended(stage, "for n in 1 2 3 4; do echo line $n; done")
    assert console.logs(pod, "--tail=2").out == "line 3\nline 4\n"
    assert console.logs(pod, "--tail=0").out == ""
    assert console.logs(pod, "--tail=10").out.count("\n") == 4
    assert console.logs(pod, "--limit-bytes=10").out == "line 1\nlin"
    without = console.logs(pod, "--previous")
    assert without.code == 1
    assert f'previous terminated container "c" in pod "{pod.name}" not found' in without.err


def test_a_line_may_be_long(stage: Stage, console: Console) -> None:
    """The runtime cuts it into pieces; whoever reads sees one line, with one time."""
    pod = ended(stage, "head -c 40000 /dev/zero | tr '\\0' x; echo; echo after")
    assert console.logs(pod).out == "x" * 40000 + "\nafter\n"
    (first, second) = console.logs(pod, "--timestamps").out.splitlines()
    assert first.endswith(" " + "x" * 40000)
    assert second.endswith(" after")


@pytest.mark.slow
def test_each_line_knows_its_time(stage: Stage, console: Console) -> None:
    began = datetime.now(UTC)
    pod = ended(stage, "echo one; sleep 2; echo two")
    (first, second) = console.logs(pod, "--timestamps").out.splitlines()
    times = [datetime.fromisoformat(line.split()[0]) for line in (first, second)]
    assert [line.split()[1] for line in (first, second)] == ["one", "two"]
    assert len(first.split()[0]) == len("2026-01-01T00:00:00.000000000Z")
    assert began - timedelta(seconds=1) < times[0] < times[1]
    assert times[1] - times[0] > timedelta(seconds=1.5)
    between = (times[0] + timedelta(seconds=1)).isoformat(timespec="seconds")
    assert console.logs(pod, f"--since-time={between}").out == "two\n"
    assert console.logs(pod, "--since=1h").out == "one\ntwo\n"
    time.sleep(1.1)
    assert console.logs(pod, "--since=1s").out == ""


def test_followed_until_the_container_ends(stage: Stage, console: Console) -> None:
    waits = container("echo begun; until test -e /s/go; do sleep 0.1; done; echo done", **SCRATCH)
    pod = stage.pod(containers=[waits], volumes=[{"name": "s", "emptyDir": {}}], restartPolicy="Never")
    pod.until(lambda: pod.state() == "running")
    with console.start("logs", "-f", pod.name) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "begun\n"
        assert console.execute(pod, "touch", "/s/go").code == 0
        assert following.stdout.read() == "done\n"
        assert following.wait(30) == 0


def test_of_the_run_before(stage: Stage, console: Console) -> None:
    twice = container(
        f"if test -e /s/once; then echo second; {STAYS}; fi; touch /s/once; echo first; exit 1", **SCRATCH
    )
    pod = stage.pod(containers=[twice], volumes=[{"name": "s", "emptyDir": {}}])
    pod.until(lambda: pod.container().get("restartCount") == 1 and pod.state() == "running")
    assert eventually(lambda: console.logs(pod).out == "second\n")
    assert console.logs(pod, "--previous").out == "first\n"


def test_of_one_container_of_several(stage: Stage, console: Console) -> None:
    pod = stage.pod(
        initContainers=[container("echo prepared", name="first")],
        containers=[container("echo left", name="left"), container("echo right", name="right")],
        restartPolicy="Never",
    )
    pod.until_phase("Succeeded")
    assert console.logs(pod, "-c", "right").out == "right\n"
    assert console.logs(pod, "-c", "first").out == "prepared\n"
    every = console.logs(pod, "--all-containers", "--prefix").out.splitlines()
    texts = {"first": "prepared", "left": "left", "right": "right"}
    assert sorted(every) == [f"[pod/{pod.name}/{name}] {text}" for name, text in texts.items()]


def test_a_container_that_waits_says_for_what(stage: Stage, console: Console) -> None:
    pod = stage.pod(
        initContainers=[container(STAYS, name="first")],
        containers=[container("echo never")],
        restartPolicy="Never",
    )
    pod.until(lambda: pod.state("first") == "running")
    said = console.logs(pod)
    assert said.code == 1
    assert f'container "c" in pod "{pod.name}" is waiting to start: PodInitializing' in said.err


def test_logs_outlive_the_kubelet(stage: Stage, console: Console) -> None:
    over = ended(stage, "echo over")
    over.until_phase("Succeeded")
    running = stage.pod(containers=[container(f"echo early; {STAYS}")])
    running.until_running()
    stage.kubelet.kill()
    stage.kubelet.revive()
    assert eventually(lambda: console.logs(over).out == "over\n")
    assert eventually(lambda: console.logs(running).out == "early\n")
