"""`kubectl exec` runs a command inside a running container, through the real API server."""

import ssl
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.sandbox.kubelet.api import NODES, Api
from tests.sandbox.kubelet.fixture import RUN_FOREVER, KubeletFixture, Pod, container
from tests.sandbox.kubelet.implementations import Kubelet, with_processes
from tests.sandbox.kubelet.kubectl import Kubectl
from tests.waiting import until

pytestmark = with_processes


@pytest.fixture(scope="module")
def pod(api: Api, kubelet: Kubelet) -> Iterator[Pod]:
    """Shared by all tests that do not change it."""
    fixture = KubeletFixture(api, kubelet)
    env = [{"name": "GREETING", "value": "hello"}]
    pod = fixture.pod(containers=[{**RUN_FOREVER, "env": env, "workingDir": "/tmp"}])
    pod.until_ready()
    yield pod
    fixture.clean_up()


def test_stdout_and_stderr_are_separate(pod: Pod, kubectl: Kubectl) -> None:
    output = kubectl.exec(pod, "sh", "-c", "echo out; echo err >&2")
    assert (output.stdout, output.stderr, output.code) == ("out\n", "err\n", 0)


@pytest.mark.parametrize("code", [1, 42])
def test_kubectl_exits_with_the_exit_code_of_the_command(pod: Pod, kubectl: Kubectl, code: int) -> None:
    output = kubectl.exec(pod, "sh", "-c", f"echo before; exit {code}")
    assert (output.stdout, output.code) == ("before\n", code)
    assert f"command terminated with exit code {code}" in output.stderr


def test_stdin_larger_than_any_buffer_arrives_with_its_end(pod: Pod, kubectl: Kubectl) -> None:
    text = "0123456789abcde\n" * 40_000
    output = kubectl.exec(pod, "cat", flags=("-i",), stdin=text)
    assert (output.stdout == text, output.code) == (True, 0)


def test_a_command_shares_environment_directory_host_name_files_and_processes(pod: Pod, kubectl: Kubectl) -> None:
    script = 'echo "$GREETING" "$PWD" "$(hostname)"; tr "\\0" " " < /proc/1/cmdline'
    output = kubectl.exec(pod, "sh", "-c", script)
    assert output.stdout.startswith(f"hello /tmp {pod.name}\nsh -c trap")
    assert kubectl.exec(pod, "sh", "-c", "echo hello > /tmp/file").code == 0
    assert kubectl.exec(pod, "cat", "/tmp/file").stdout == "hello\n"


def test_a_command_that_does_not_exist_is_reported(pod: Pod, kubectl: Kubectl) -> None:
    output = kubectl.exec(pod, "no-such-program")
    assert output.code == 1
    assert 'exec: "no-such-program": executable file not found in $PATH' in output.stderr
    assert "error executing command in container" in output.stderr


def test_a_terminated_container_is_not_found(node: KubeletFixture, kubectl: Kubectl) -> None:
    pod = node.pod(containers=[RUN_FOREVER, container("exit 0", name="done")], restartPolicy="Never")
    pod.until(lambda: pod.state("done") == "terminated" and pod.state() == "running")
    output = kubectl.exec(pod, "true", flags=("-c", "done"))
    assert output.code == 1
    assert 'container not found ("done")' in output.stderr


def test_a_command_is_killed_with_its_container(node: KubeletFixture, kubectl: Kubectl) -> None:
    pod = node.pod()
    pod.until_ready()
    with kubectl.start("exec", pod.name, "--", "sh", "-c", "echo started; sleep 10000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        pod.delete()
        rest = process.stdout.read()
        assert process.wait(60) == 137, rest


def test_a_command_can_have_a_terminal(pod: Pod, kubectl: Kubectl) -> None:
    script = "test -t 0 && test -t 1 && echo terminal; exit 3"
    output = kubectl.with_terminal("exec", "-it", pod.name, "--", "sh", "-c", script)
    assert output.stdout.startswith("terminal\r\n")
    assert output.code == 3


class TestAuthorization:
    def url(self, node: KubeletFixture) -> str:
        status = node.api.get(f"{NODES}/{node.kubelet.name}")["status"]
        (ip,) = [a["address"] for a in status["addresses"] if a["type"] == "InternalIP"]
        return f"https://{ip}:{status['daemonEndpoints']['kubeletEndpoint']['Port']}/containerLogs/default"

    def get(self, url: str, certificate: Any = None) -> httpx2.Response:
        trust = ssl.create_default_context()
        trust.check_hostname = False
        trust.verify_mode = ssl.CERT_NONE
        if certificate:
            trust.load_cert_chain(*certificate)
        with httpx2.Client(verify=trust, trust_env=False, timeout=30) as http:
            return http.get(url)

    def test_a_client_without_a_certificate_is_unauthorized(self, node: KubeletFixture, pod: Pod) -> None:
        response = self.get(f"{self.url(node)}/{pod.name}/c")
        assert (response.status_code, response.text) == (401, "Unauthorized")

    def test_a_node_is_forbidden(self, node: KubeletFixture, pod: Pod, cluster: ControlPlane) -> None:
        certificate = cluster.authority.client("a-node", "system:node:other", ["system:nodes"])
        response = self.get(f"{self.url(node)}/{pod.name}/c", certificate)
        assert response.status_code == 403
        assert response.text.startswith("Forbidden (user=system:node:other, verb=get, resource=nodes, ")

    def test_the_api_server_is_authorized(self, node: KubeletFixture, pod: Pod, cluster: ControlPlane) -> None:
        certificate = cluster.authority.client("an-admin", "admin", ["system:masters"])
        assert self.get(f"{self.url(node)}/{pod.name}/c", certificate).status_code == 200
        until(lambda: self.get(f"{self.url(node)}/no-such-pod/c", certificate).status_code == 404)
