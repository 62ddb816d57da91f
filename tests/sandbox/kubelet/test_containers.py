"""The life of containers: order, exits, restarts, termination, and their environment."""

import time
from typing import Any

import pytest

from tests.sandbox.kubelet.api import CONFIG_MAPS
from tests.sandbox.kubelet.fixture import RUN_FOREVER, KubeletFixture, container, unique
from tests.sandbox.kubelet.implementations import with_processes

pytestmark = with_processes

REPORT = "cat > /dev/termination-log"
"""The container's status then shows what was written: a way to look inside."""

FINALIZER = {"finalizers": ["imex-dra.io/held-by-a-test"]}
"""Keeps a deleted pod, so that its final status can be read."""

SCRATCH: dict[str, Any] = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
SCRATCH_VOLUME = [{"name": "scratch", "emptyDir": {}}]


def reported(node: KubeletFixture, script: str, **more: Any) -> str:
    pod = node.pod(containers=[container(script, **more)], restartPolicy="Never")
    pod.until(lambda: pod.state() == "terminated")
    return str(pod.terminated().get("message", ""))


def test_a_running_pod_has_a_complete_status(node: KubeletFixture) -> None:
    pod = node.pod()
    pod.until_ready()
    status = pod.status
    assert status["phase"] == "Running"
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions == dict.fromkeys(
        ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"), "True"
    )
    assert status["startTime"]
    assert status["hostIP"]
    assert [ip["ip"] for ip in status["podIPs"]] == [status["podIP"]]
    (one,) = status["containerStatuses"]
    assert one["state"]["running"]["startedAt"]
    assert (one["ready"], one["started"], one["restartCount"], one["lastState"]) == (True, True, 0, {})
    assert "://" in one["containerID"]
    assert status["qosClass"] == "BestEffort"
    # The second one is that of kubelets before 1.36.
    pod.until(lambda: pod.events("Started") in (["Container started"], ["Started container c"]))


@pytest.mark.parametrize(("code", "phase", "reason"), [(0, "Succeeded", "Completed"), (3, "Failed", "Error")])
def test_a_pod_that_is_never_restarted_completes_as_its_container_did(
    node: KubeletFixture, code: int, phase: str, reason: str
) -> None:
    pod = node.pod(containers=[container(f"exit {code}")], restartPolicy="Never")
    pod.until_phase(phase)
    terminated = pod.terminated()
    assert (terminated["exitCode"], terminated["reason"]) == (code, reason)
    assert pod.container()["restartCount"] == 0
    assert pod.condition("Ready") == "False"


def test_the_exit_code_of_a_killed_process_is_reported(node: KubeletFixture) -> None:
    """Pid 1 cannot be killed from inside, so it kills its child and exits with the child's code."""
    pod = node.pod(containers=[container("sleep 10 & kill -9 $!; wait $!")], restartPolicy="Never")
    pod.until_phase("Failed")
    assert pod.terminated()["exitCode"] == 137


def test_restart_policy_on_failure_restarts_until_success(node: KubeletFixture) -> None:
    script = "test -e /scratch/once && exit 0; touch /scratch/once; exit 1"
    pod = node.pod(containers=[container(script, **SCRATCH)], restartPolicy="OnFailure", volumes=SCRATCH_VOLUME)
    pod.until_phase("Succeeded")
    assert pod.container()["restartCount"] == 1
    assert pod.terminated()["exitCode"] == 0


def test_restart_policy_always_restarts_with_backoff(node: KubeletFixture) -> None:
    pod = node.pod(containers=[container("exit 0")], restartPolicy="Always")
    status = pod.until_status(lambda status: "CrashLoopBackOff" in str(status.get("containerStatuses")))
    (one,) = status["containerStatuses"]
    assert one["restartCount"] == 1
    assert one["lastState"]["terminated"]["reason"] == "Completed"
    assert one["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert one["state"]["waiting"]["message"].startswith("back-off 10s restarting failed container=c pod=")
    assert status["phase"] == "Running"
    assert ("Ready", "False") in [(c["type"], c["status"]) for c in status["conditions"]]
    message = f"Back-off restarting failed container c in pod {pod.name}_default({pod.uid})"
    pod.until(lambda: message in pod.events("BackOff"))


def test_init_containers_run_in_order_before_the_others(node: KubeletFixture) -> None:
    pod = node.pod(
        initContainers=[
            container("sleep 1; echo one >> /scratch/order", name="one", **SCRATCH),
            container("echo two >> /scratch/order", name="two", **SCRATCH),
        ],
        containers=[container(f"cat /scratch/order | {REPORT}", **SCRATCH)],
        volumes=SCRATCH_VOLUME,
        restartPolicy="Never",
    )
    pod.until_phase("Succeeded")
    assert pod.terminated()["message"] == "one\ntwo\n"
    for name in ("one", "two"):
        assert pod.terminated(name)["reason"] == "Completed"


def test_a_failed_init_container_fails_a_pod_that_is_never_restarted(node: KubeletFixture) -> None:
    pod = node.pod(
        initContainers=[container("exit 1", name="first")], containers=[RUN_FOREVER], restartPolicy="Never"
    )
    pod.until_phase("Failed")
    assert pod.terminated("first")["exitCode"] == 1
    assert pod.container()["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert pod.condition("Initialized") == "False"


def test_a_deleted_pod_reports_the_exit_code_after_sigterm(node: KubeletFixture) -> None:
    graceful = container("trap 'exit 7' TERM; sleep 10000 & wait")
    pod = node.pod(containers=[graceful], metadata=FINALIZER, terminationGracePeriodSeconds=600)
    pod.until_ready()
    pod.delete()
    pod.until_phase("Failed")
    assert pod.terminated()["exitCode"] == 7


def test_a_container_that_ignores_sigterm_is_killed_after_the_grace_period(node: KubeletFixture) -> None:
    pod = node.pod(containers=[container("sleep 10000")], metadata=FINALIZER, terminationGracePeriodSeconds=3)
    pod.until_ready()
    deleted_at = time.monotonic()
    pod.delete()
    pod.until_phase("Failed")
    assert pod.terminated()["exitCode"] == 137
    assert time.monotonic() - deleted_at > 2.5


def test_a_command_that_does_not_exist_is_a_start_error(node: KubeletFixture) -> None:
    missing = {**RUN_FOREVER, "command": ["no-such-program"]}
    pod = node.pod(containers=[missing], restartPolicy="Never")
    pod.until_phase("Failed")
    terminated = pod.terminated()
    assert (terminated["exitCode"], terminated["reason"]) == (128, "StartError")
    assert 'exec: "no-such-program": executable file not found in $PATH' in terminated["message"]


def test_variables_are_expanded_in_the_environment_and_in_arguments(node: KubeletFixture) -> None:
    env = [{"name": "NAME", "value": "you"}, {"name": "GREETING", "value": "hello $(NAME)"}]
    field = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    script = f'echo "$GREETING at $NODE: $0 $1" | {REPORT}'
    message = reported(node, script, env=[*env, field], args=["$(NAME)", "$$(NAME)"])
    assert message == f"hello you at {node.kubelet.name}: you $(NAME)\n"


def test_env_from_sets_every_key_of_a_config_map(node: KubeletFixture) -> None:
    name = unique("config")
    node.api.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"ONE": "1", "TWO": "2"}})
    key = {"configMapKeyRef": {"name": name, "key": "none", "optional": True}}
    message = reported(
        node,
        f'echo "$ONE $TWO $C_TWO $BOTH ${{NONE-unset}}" | {REPORT}',
        envFrom=[{"configMapRef": {"name": name}}, {"prefix": "C_", "configMapRef": {"name": name}}],
        env=[
            {"name": "ONE", "value": "one"},
            {"name": "BOTH", "value": "$(ONE)$(TWO)"},
            {"name": "NONE", "valueFrom": key},
        ],
    )
    assert message == "one 2 2 one2 unset\n"


def test_a_missing_key_keeps_the_container_from_being_created(node: KubeletFixture) -> None:
    name = unique("config")
    node.api.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"ONE": "1"}})
    key = {"configMapKeyRef": {"name": name, "key": "TWO"}}
    pod = node.pod(containers=[{**RUN_FOREVER, "env": [{"name": "X", "valueFrom": key}]}])
    expected = {
        "reason": "CreateContainerConfigError",
        "message": f"couldn't find key TWO in ConfigMap default/{name}",
    }
    pod.until(lambda: pod.container()["state"].get("waiting") == expected)
    pod.until(lambda: f"Error: {expected['message']}" in pod.events("Failed"))


def test_a_pod_can_set_its_host_name(node: KubeletFixture) -> None:
    script = container(f'echo "$(hostname) $HOSTNAME" | {REPORT}')
    pod = node.pod(containers=[script], restartPolicy="Never", hostname="worker-0", subdomain="workers")
    pod.until_phase("Succeeded")
    assert pod.terminated()["message"] == "worker-0 worker-0\n"
