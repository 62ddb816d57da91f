"""What runs in a pod: order, ends, restarts. Needs containers that are processes, so hollow ones are left out."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.kubelet.api import CONFIG_MAPS
from tests.kubelet.implementations import with_processes
from tests.kubelet.stage import FOR_EVER, Stage, container, unique

pytestmark = with_processes

SAY = "cat > /dev/termination-log"
"""What a container writes there, its status says: all that a test needs to look inside."""


def words(stage: Stage, script: str, **more: Any) -> str:
    pod = stage.pod(containers=[container(script, **more)], restartPolicy="Never")
    pod.until(lambda: pod.state() == "terminated")
    return str(pod.container()["state"]["terminated"].get("message", ""))


def test_a_running_pod_says_so_everywhere(stage: Stage) -> None:
    pod = stage.pod()
    pod.until_running()
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
    pod.until(lambda: pod.events("Started") == ["Container started"])


@pytest.mark.parametrize(("code", "phase", "reason"), [(0, "Succeeded", "Completed"), (3, "Failed", "Error")])
def test_a_pod_that_is_never_restarted_ends_as_its_container_did(
    stage: Stage, code: int, phase: str, reason: str
) -> None:
    pod = stage.pod(containers=[container(f"exit {code}")], restartPolicy="Never")
    pod.until_phase(phase)
    ended = pod.container()["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (code, reason)
    assert pod.container()["restartCount"] == 0
    assert pod.condition("Ready") == "False"


def test_a_killed_container_tells_the_signal(stage: Stage) -> None:
    """From inside, pid 1 can't be killed; so it kills its child and ends as a shell does."""
    pod = stage.pod(containers=[container("sleep 10 & kill -9 $!; wait $!")], restartPolicy="Never")
    pod.until_phase("Failed")
    assert pod.container()["state"]["terminated"]["exitCode"] == 137


def test_on_failure_restarts_until_it_succeeds(stage: Stage) -> None:
    scratch = [{"name": "scratch", "emptyDir": {}}]
    twice = container(
        "test -e /scratch/once && exit 0; touch /scratch/once; exit 1",
        volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}],
    )
    pod = stage.pod(containers=[twice], restartPolicy="OnFailure", volumes=scratch)
    pod.until_phase("Succeeded")
    status = pod.container()
    assert status["restartCount"] == 1
    assert status["state"]["terminated"]["exitCode"] == 0


def test_always_restarts_and_backs_off(stage: Stage) -> None:
    pod = stage.pod(containers=[container("exit 0")], restartPolicy="Always")
    status = pod.until_status(lambda status: "CrashLoopBackOff" in str(status.get("containerStatuses")))
    (one,) = status["containerStatuses"]
    assert one["restartCount"] == 1
    assert one["lastState"]["terminated"]["reason"] == "Completed"
    assert one["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert one["state"]["waiting"]["message"].startswith("back-off 10s restarting failed container=c pod=")
    assert status["phase"] == "Running"
    assert ("Ready", "False") in [(c["type"], c["status"]) for c in status["conditions"]]
    backing_off = f"Back-off restarting failed container c in pod {pod.name}_default({pod.uid})"
    pod.until(lambda: backing_off in pod.events("BackOff"))


def test_init_containers_run_one_after_the_other_before_the_rest(stage: Stage) -> None:
    scratch: dict[str, Any] = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    pod = stage.pod(
        initContainers=[
            container("sleep 1; echo one >> /scratch/order", name="one", **scratch),
            container("echo two >> /scratch/order", name="two", **scratch),
        ],
        containers=[container(f"cat /scratch/order | {SAY}", **scratch)],
        volumes=[{"name": "scratch", "emptyDir": {}}],
        restartPolicy="Never",
    )
    pod.until_phase("Succeeded")
    assert pod.container()["state"]["terminated"]["message"] == "one\ntwo\n"
    for name in ("one", "two"):
        assert pod.container(name)["state"]["terminated"]["reason"] == "Completed"


def test_a_failed_init_container_fails_a_pod_that_is_never_restarted(stage: Stage) -> None:
    pod = stage.pod(
        initContainers=[container("exit 1", name="first")], containers=[FOR_EVER], restartPolicy="Never"
    )
    pod.until_phase("Failed")
    assert pod.container("first")["state"]["terminated"]["exitCode"] == 1
    assert pod.container()["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert pod.condition("Initialized") == "False"


def test_a_deleted_pod_is_asked_to_end_and_its_word_is_kept(stage: Stage) -> None:
    held = {"finalizers": ["imex-dra.io/held-by-a-test"]}
    polite = container("trap 'exit 7' TERM; sleep 10000 & wait")
    pod = stage.pod(containers=[polite], metadata=held, terminationGracePeriodSeconds=600)
    pod.until_running()
    pod.delete()
    pod.until_phase("Failed")
    assert pod.container()["state"]["terminated"]["exitCode"] == 7


def test_who_does_not_end_within_the_grace_is_killed(stage: Stage) -> None:
    held = {"finalizers": ["imex-dra.io/held-by-a-test"]}
    pod = stage.pod(containers=[container("sleep 10000")], metadata=held, terminationGracePeriodSeconds=3)
    pod.until_running()
    began = time.monotonic()
    pod.delete()
    pod.until_phase("Failed")
    assert pod.container()["state"]["terminated"]["exitCode"] == 137
    assert time.monotonic() - began > 2.5


def test_environment_and_arguments(stage: Stage) -> None:
    env = [{"name": "WHO", "value": "you"}, {"name": "GREETING", "value": "hello $(WHO)"}]
    field = {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    script = f'echo "$GREETING at $WHERE: $0 $1" | {SAY}'
    said = words(stage, script, env=[*env, field], args=["$(WHO)", "$$(WHO)"])
    assert said == f"hello you at {stage.kubelet.name}: you $(WHO)\n"


def test_variables_of_whole_objects(stage: Stage) -> None:
    name = unique("config")
    stage.api.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"ONE": "1", "TWO": "2"}})
    key = {"configMapKeyRef": {"name": name, "key": "none", "optional": True}}
    said = words(
        stage,
        f'echo "$ONE $TWO $C_TWO $BOTH ${{NONE-unset}}" | {SAY}',
        envFrom=[{"configMapRef": {"name": name}}, {"prefix": "C_", "configMapRef": {"name": name}}],
        env=[
            {"name": "ONE", "value": "one"},
            {"name": "BOTH", "value": "$(ONE)$(TWO)"},
            {"name": "NONE", "valueFrom": key},
        ],
    )
    assert said == "one 2 2 one2 unset\n"


def test_a_variable_without_a_value_keeps_its_container_from_starting(stage: Stage) -> None:
    name = unique("config")
    stage.api.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"ONE": "1"}})
    key = {"configMapKeyRef": {"name": name, "key": "TWO"}}
    pod = stage.pod(containers=[{**FOR_EVER, "env": [{"name": "X", "valueFrom": key}]}])
    expected = {
        "reason": "CreateContainerConfigError",
        "message": f"couldn't find key TWO in ConfigMap default/{name}",
    }
    pod.until(lambda: pod.container()["state"].get("waiting") == expected)
    pod.until(lambda: f"Error: {expected['message']}" in pod.events("Failed"))


def test_a_pod_s_own_host_name(stage: Stage) -> None:
    script = f'echo "$(hostname) $HOSTNAME" | {SAY}'
    pod = stage.pod(
        containers=[container(script)], restartPolicy="Never", hostname="worker-0", subdomain="workers"
    )
    pod.until_phase("Succeeded")
    assert pod.container()["state"]["terminated"]["message"] == "worker-0 worker-0\n"


def test_files_have_the_modes_that_are_asked_for(stage: Stage) -> None:
    name = unique("config")
    stage.api.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"key": "1", "run": "2"}})
    volumes = [
        {"name": "plain", "configMap": {"name": name}},
        {
            "name": "chosen",
            "configMap": {
                "name": name,
                "defaultMode": 0o400,
                "items": [{"key": "key", "path": "key"}, {"key": "run", "path": "bin/run", "mode": 0o755}],
            },
        },
        {
            "name": "pod",
            "downwardAPI": {
                "defaultMode": 0o440,
                "items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}],
            },
        },
        {"name": "part", "emptyDir": {}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/v/{volume['name']}"} for volume in volumes[:3]]
    mounts.append({"name": "part", "mountPath": "/v/part", "subPath": "deep/down"})
    files = "/v/plain/key /v/chosen/key /v/chosen/bin/run /v/pod/name"
    script = f"(stat -L -c %a {files}; cat /v/pod/name; echo; touch /v/part/here && ls /v/part) | {SAY}"
    pod = stage.pod(containers=[container(script, volumeMounts=mounts)], volumes=volumes, restartPolicy="Never")
    pod.until_phase("Succeeded")
    said = pod.container()["state"]["terminated"]["message"].split()
    assert said == ["644", "400", "755", "440", pod.name, "here"]


def test_an_empty_directory_is_shared_by_the_containers_of_a_pod(stage: Stage) -> None:
    mounts: dict[str, Any] = {"volumeMounts": [{"name": "shared", "mountPath": "/var/shared/deep"}]}
    pod = stage.pod(
        containers=[
            container("echo hello > /var/shared/deep/word", name="writer", **mounts),
            container(f"until cat /var/shared/deep/word 2>/dev/null | grep . | {SAY}; do :; done", **mounts),
        ],
        volumes=[{"name": "shared", "emptyDir": {}}],
        restartPolicy="Never",
    )
    pod.until_phase("Succeeded")


@pytest.mark.parametrize("place", ["/etc/config", "/var/run/config-of-a-test/deep", "/usr/share/config-of-a-test"])
def test_a_config_map_is_files_wherever_it_is_mounted(stage: Stage, place: str) -> None:
    name = unique("config")
    stage.api.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"one": "1\n", "two": "2\n"}})
    script = container(
        f"cat {place}/one {place}/two | {SAY}", volumeMounts=[{"name": "config", "mountPath": place}]
    )
    volume = {"name": "config", "configMap": {"name": name}}
    pod = stage.pod(containers=[script], volumes=[volume], restartPolicy="Never")
    pod.until_phase("Succeeded")
    assert pod.container()["state"]["terminated"]["message"] == "1\n2\n"
    assert not Path(place).exists()


def test_a_missing_config_map_is_told_and_waited_for(stage: Stage) -> None:
    name = unique("config")
    volume = {"name": "config", "configMap": {"name": name}}
    mounting = {**FOR_EVER, "volumeMounts": [{"name": "config", "mountPath": "/etc/config"}]}
    pod = stage.pod(containers=[mounting], volumes=[volume])
    assert f'MountVolume.SetUp failed for volume "config" : configmap "{name}" not found' in pod.until_event(
        "FailedMount"
    )
    assert pod.phase == "Pending"
    stage.api.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"one": "1"}})
    pod.nudge()
    pod.until_running()
    picky = {"name": "config", "configMap": {"name": name, "items": [{"key": "two", "path": "two"}]}}
    other = stage.pod(containers=[mounting], volumes=[picky])
    assert "references non-existent config key: two" in other.until_event("FailedMount")


def test_a_command_that_does_not_exist_never_runs(stage: Stage) -> None:
    missing = {**FOR_EVER, "command": ["no-such-program"]}
    pod = stage.pod(containers=[missing], restartPolicy="Never")
    pod.until_phase("Failed")
    ended = pod.container()["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert 'exec: "no-such-program": executable file not found in $PATH' in ended["message"]


def test_a_service_account_finds_its_token_and_the_api_server(stage: Stage) -> None:
    look = "ls; cat namespace; echo; test -s token && echo token; grep -c BEGIN ca.crt"
    find = 'test -n "$KUBERNETES_SERVICE_HOST" && echo host'
    script = f"cd /var/run/secrets/kubernetes.io/serviceaccount; ({look}; {find}) | {SAY}"
    pod = stage.pod(containers=[container(script)], restartPolicy="Never", automountServiceAccountToken=True)
    pod.until_phase("Succeeded")
    said = pod.container()["state"]["terminated"]["message"].split()
    assert said == ["ca.crt", "namespace", "token", "default", "token", "1", "host"]
