"""`kubectl exec`: a command inside a running container, by way of the real API server."""

import ssl
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from tests.kubelet.api import NODES, Api
from tests.kubelet.console import Console
from tests.kubelet.implementations import Kubelet, with_processes
from tests.kubelet.stage import FOR_EVER, Pod, Stage, container
from tests.sandbox.waiting import eventually

pytestmark = with_processes


@pytest.fixture(scope="module")
def pod(api: Api, kubelet: Kubelet) -> Iterator[Pod]:
    """Nobody harms it, so one does for all."""
    stage = Stage(api, kubelet)
    made = stage.pod(containers=[{**FOR_EVER, "env": [{"name": "WHO", "value": "you"}], "workingDir": "/tmp"}])
    made.until_running()
    yield made
    stage.clear()


def test_each_stream_arrives_where_it_belongs(pod: Pod, console: Console) -> None:
    said = console.execute(pod, "sh", "-c", "echo out; echo err >&2")
    assert (said.out, said.err, said.code) == ("out\n", "err\n", 0)


@pytest.mark.parametrize("code", [1, 42])
def test_the_command_s_end_is_kubectl_s(pod: Pod, console: Console, code: int) -> None:
    said = console.execute(pod, "sh", "-c", f"echo before; exit {code}")
    assert (said.out, said.code) == ("before\n", code)
    assert f"command terminated with exit code {code}" in said.err


def test_what_goes_in_comes_out(pod: Pod, console: Console) -> None:
    """More than fits into any buffer on the way, and the end of it is heard of."""
    text = "0123456789abcde\n" * 40_000
    said = console.execute(pod, "cat", flags=("-i",), stdin=text)
    assert (said.out == text, said.code) == (True, 0)


def test_it_is_where_the_container_is(pod: Pod, console: Console) -> None:
    """The same environment, directory, host name, files and processes."""
    script = 'echo "$WHO" "$PWD" "$(hostname)"; tr "\\0" " " < /proc/1/cmdline'
    said = console.execute(pod, "sh", "-c", script)
    assert said.out.startswith(f"you /tmp {pod.name}\nsh -c trap")
    assert console.execute(pod, "sh", "-c", "echo hello > /tmp/word").code == 0
    assert console.execute(pod, "cat", "/tmp/word").out == "hello\n"


def test_a_command_that_does_not_exist(pod: Pod, console: Console) -> None:
    said = console.execute(pod, "no-such-program")
    assert said.code == 1
    assert 'exec: "no-such-program": executable file not found in $PATH' in said.err
    assert "error executing command in container" in said.err


def test_one_of_two_containers_that_is_over(stage: Stage, console: Console) -> None:
    pod = stage.pod(containers=[FOR_EVER, container("exit 0", name="over")], restartPolicy="Never")
    pod.until(lambda: pod.state("over") == "terminated" and pod.state() == "running")
    said = console.execute(pod, "true", flags=("-c", "over"))
    assert said.code == 1
    assert 'container not found ("over")' in said.err


def test_it_dies_with_its_container(stage: Stage, console: Console) -> None:
    pod = stage.pod()
    pod.until_running()
    with console.start("exec", pod.name, "--", "sh", "-c", "echo begun; sleep 10000") as executing:
        assert executing.stdout is not None
        assert executing.stdout.readline() == "begun\n"
        pod.delete()
        rest = executing.stdout.read()
        assert executing.wait(60) == 137, rest


def test_with_a_terminal(pod: Pod, console: Console) -> None:
    script = "test -t 0 && test -t 1 && echo terminal; exit 3"
    said = console.at_a_terminal("exec", "-it", pod.name, "--", "sh", "-c", script)
    assert said.out.startswith("terminal\r\n")
    assert said.code == 3


class TestWhoMayCome:
    def address(self, stage: Stage) -> str:
        status = stage.api.get(f"{NODES}/{stage.kubelet.name}")["status"]
        (ip,) = [a["address"] for a in status["addresses"] if a["type"] == "InternalIP"]
        return f"https://{ip}:{status['daemonEndpoints']['kubeletEndpoint']['Port']}"

    def asked(self, url: str, **more: Any) -> httpx2.Response:
        trust = ssl.create_default_context()
        trust.check_hostname = False
        trust.verify_mode = ssl.CERT_NONE
        if certificate := more.pop("certificate", None):
            trust.load_cert_chain(*certificate)
        with httpx2.Client(verify=trust, trust_env=False, timeout=30) as http:
            return http.get(url, **more)

    def test_nobody_without_a_certificate(self, stage: Stage, pod: Pod) -> None:
        answer = self.asked(f"{self.address(stage)}/containerLogs/default/{pod.name}/c")
        assert (answer.status_code, answer.text) == (401, "Unauthorized")

    def test_not_a_node(self, stage: Stage, pod: Pod, cluster: ControlPlane) -> None:
        mine = cluster.authority.client("a-node", "system:node:other", ["system:nodes"])
        answer = self.asked(f"{self.address(stage)}/containerLogs/default/{pod.name}/c", certificate=mine)
        assert answer.status_code == 403
        assert answer.text.startswith("Forbidden (user=system:node:other, verb=get, resource=nodes, ")

    def test_the_api_server(self, stage: Stage, pod: Pod, cluster: ControlPlane) -> None:
        mine = cluster.authority.client("an-admin", "somebody", ["system:masters"])
        url = f"{self.address(stage)}/containerLogs/default"
        assert self.asked(f"{url}/{pod.name}/c", certificate=mine).status_code == 200
        assert eventually(lambda: self.asked(f"{url}/nobody/c", certificate=mine).status_code == 404)
