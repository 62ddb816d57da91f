"""Volumes: files with their modes, wherever they are mounted, and service account tokens."""

from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.kubelet.api import CONFIG_MAPS
from tests.sandbox.kubelet.fixture import RUN_FOREVER, KubeletFixture, container, unique
from tests.sandbox.kubelet.implementations import with_processes

pytestmark = with_processes

REPORT = "cat > /dev/termination-log"


def create_config_map(node: KubeletFixture, **data: str) -> str:
    name = unique("config")
    node.api.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": data})
    return name


def test_files_have_the_requested_modes(node: KubeletFixture) -> None:
    name = create_config_map(node, key="1", run="2")
    volumes = [
        {"name": "plain", "configMap": {"name": name}},
        {
            "name": "selected",
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
    files = "/v/plain/key /v/selected/key /v/selected/bin/run /v/pod/name"
    script = f"(stat -L -c %a {files}; cat /v/pod/name; echo; touch /v/part/here && ls /v/part) | {REPORT}"
    pod = node.pod(containers=[container(script, volumeMounts=mounts)], volumes=volumes, restartPolicy="Never")
    pod.until_phase("Succeeded")
    assert pod.terminated()["message"].split() == ["644", "400", "755", "440", pod.name, "here"]


def test_the_containers_of_a_pod_share_an_empty_dir(node: KubeletFixture) -> None:
    mounts: dict[str, Any] = {"volumeMounts": [{"name": "shared", "mountPath": "/var/shared/deep"}]}
    pod = node.pod(
        containers=[
            container("echo hello > /var/shared/deep/file", name="writer", **mounts),
            container("until grep hello /var/shared/deep/file; do :; done", name="reader", **mounts),
        ],
        volumes=[{"name": "shared", "emptyDir": {}}],
        restartPolicy="Never",
    )
    pod.until_phase("Succeeded")


@pytest.mark.parametrize("path", ["/etc/config", "/var/run/config-of-a-test/deep", "/usr/share/config-of-a-test"])
def test_a_config_map_can_be_mounted_anywhere(node: KubeletFixture, path: str) -> None:
    name = create_config_map(node, one="1\n", two="2\n")
    script = container(
        f"cat {path}/one {path}/two | {REPORT}", volumeMounts=[{"name": "config", "mountPath": path}]
    )
    volume = {"name": "config", "configMap": {"name": name}}
    pod = node.pod(containers=[script], volumes=[volume], restartPolicy="Never")
    pod.until_phase("Succeeded")
    assert pod.terminated()["message"] == "1\n2\n"
    assert not Path(path).exists()


def test_a_pod_waits_for_a_missing_config_map(node: KubeletFixture) -> None:
    name = unique("config")
    volume = {"name": "config", "configMap": {"name": name}}
    mounting = {**RUN_FOREVER, "volumeMounts": [{"name": "config", "mountPath": "/etc/config"}]}
    pod = node.pod(containers=[mounting], volumes=[volume])
    message = f'MountVolume.SetUp failed for volume "config" : configmap "{name}" not found'
    assert message in pod.until_event("FailedMount")
    assert pod.phase == "Pending"
    node.api.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"one": "1"}})
    pod.touch()
    pod.until_ready()


def test_a_missing_key_of_a_config_map_is_reported(node: KubeletFixture) -> None:
    items = [{"key": "two", "path": "two"}]
    volume = {"name": "config", "configMap": {"name": create_config_map(node, one="1"), "items": items}}
    mounting = {**RUN_FOREVER, "volumeMounts": [{"name": "config", "mountPath": "/etc/config"}]}
    pod = node.pod(containers=[mounting], volumes=[volume])
    assert "references non-existent config key: two" in pod.until_event("FailedMount")


def test_a_pod_has_a_service_account_token_and_the_address_of_the_api_server(node: KubeletFixture) -> None:
    look = "ls; cat namespace; echo; test -s token && echo token; grep -c BEGIN ca.crt"
    address = 'test -n "$KUBERNETES_SERVICE_HOST" && echo host'
    script = f"cd /var/run/secrets/kubernetes.io/serviceaccount; ({look}; {address}) | {REPORT}"
    pod = node.pod(containers=[container(script)], restartPolicy="Never", automountServiceAccountToken=True)
    pod.until_phase("Succeeded")
    expected = ["ca.crt", "namespace", "token", "default", "token", "1", "host"]
    assert pod.terminated()["message"].split() == expected
