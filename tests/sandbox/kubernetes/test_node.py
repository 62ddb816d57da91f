import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from imex_dra.base.errors import Misconfigured, Rejected
from imex_sandbox.kubernetes import cgroups, images
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.network import Network
from imex_sandbox.kubernetes.node import Node
from imex_sandbox.kubernetes.versions import kubernetes
from tests.sandbox.kubernetes import driverimage
from tests.sandbox.kubernetes.plugin import DEVICE, Plugin
from tests.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

CRASH = """
import sys
from pathlib import Path
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.network import Network
from imex_sandbox.kubernetes.node import Node
root = Path(sys.argv[1])
with ControlPlane(root / "cp") as control_plane, Network(root) as network:
    with Node("crash", root / "crash", control_plane=control_plane, network=network) as node:
        print(node.machine.pid, network.interface, flush=True)
        input()
"""
GET_API_VERSION = """
import os, ssl, urllib.request
import grpc, imex_dra
account = "/var/run/secrets/kubernetes.io/serviceaccount"
host = os.environ["KUBERNETES_SERVICE_HOST"]
token = open(f"{account}/token").read()
request = urllib.request.Request(f"https://{host}/version", headers={"Authorization": f"Bearer {token}"})
context = ssl.create_default_context(cafile=f"{account}/ca.crt")
print(urllib.request.urlopen(request, context=context).read().decode())
"""


class Cluster:
    def __init__(self, control_plane: ControlPlane, network: Network, root: Path) -> None:
        self.control_plane = control_plane
        self.network = network
        self.kubectl = control_plane.kubectl
        self._root = root

    def node(self, name: str, *archives: Path) -> Node:
        return Node(
            name, self._root / name, control_plane=self.control_plane, network=self.network, archives=archives
        )

    def run(self, name: str, node: Node, image: str = images.BUSYBOX, **spec: Any) -> None:
        self.create(name, node, image, **spec)
        self.until_ready(name)

    def create(self, name: str, node: Node, image: str = images.BUSYBOX, **spec: Any) -> None:
        """A pod that prints hello and keeps running."""
        container = {"name": "c", "image": image, "command": ["sh", "-c", "echo hello; exec sleep 1000"]}
        container |= spec.pop("container", {})
        pod = {"nodeName": node.name, "terminationGracePeriodSeconds": 0, "containers": [container], **spec}
        if "resourceClaims" in pod:
            pod["nodeSelector"] = {"kubernetes.io/hostname": pod.pop("nodeName")}
        self.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod})

    def until_ready(self, name: str) -> None:
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s", within=150)

    def exec(self, name: str, *command: str) -> str:
        return self.kubectl("exec", name, "--", *command)

    def status(self, name: str) -> Any:
        return self.kubectl.get("pod", name)["status"]


@pytest.fixture(scope="module")
def short_path() -> Iterator[Path]:
    """A directory for sockets, whose paths are limited to 107 bytes. The path of `tmp_path` is too long."""
    root = Path(tempfile.mkdtemp(prefix="ix", dir="/tmp"))
    yield root
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def cluster(short_path: Path) -> Iterator[Cluster]:
    with ControlPlane(short_path / "cp") as control_plane, Network(short_path) as network:
        yield Cluster(control_plane, network, short_path)


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> Iterator[tuple[Node, Node]]:
    one, two = cluster.node("one"), cluster.node("two", driverimage.build())
    with one, two:
        yield one, two


def processes_in(pid_namespace: Path) -> list[str]:
    """Without zombies, which have no namespaces."""

    def is_in(process: Path) -> bool:
        try:
            return (process / "ns" / "pid").readlink() == pid_namespace
        except OSError:
            return False

    return [process.name for process in Path("/proc").glob("[0-9]*") if is_in(process)]


def cgroups_of(node: str) -> list[Path]:
    found = [cgroup for hierarchy in cgroups.hierarchies() for cgroup in cgroups.node_cgroups(hierarchy)]
    return [cgroup for cgroup in found if cgroup.name.startswith(f"{node}-")]


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def namespace_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/pid").readlink()


def test_two_nodes_join_the_cluster(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    infos = {
        node["metadata"]["name"]: node["status"]["nodeInfo"] for node in cluster.kubectl.get("nodes")["items"]
    }
    assert infos.keys() == {"one", "two"}
    assert {info["kubeletVersion"] for info in infos.values()} == {kubernetes()}
    assert all(info["containerRuntimeVersion"].startswith("containerd://2.") for info in infos.values())


def test_logs_and_exec_work_on_a_running_pod(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    cluster.run("hello", nodes[0])
    until(lambda: cluster.kubectl("logs", "hello") == "hello\n")
    assert cluster.exec("hello", "hostname") == "hello\n"


def test_pods_on_different_nodes_reach_each_other(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    cluster.run("here", nodes[0])
    cluster.run("there", nodes[1])
    ping = ("exec", "here", "--", "ping", "-c1", cluster.status("there")["podIP"])
    until(lambda: "1 packets received" in output_or_error(cluster, *ping))


def test_each_node_has_its_own_host_network(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    listen = {"command": ["sh", "-c", "while :; do hostname | nc -l -p 50000; done"]}
    for name, node in zip(("left", "right"), nodes, strict=True):
        cluster.run(name, node, hostNetwork=True, container=listen)
        # Between two connections there is a moment without a server.
        connect = ("exec", name, "--", "nc", node.addresses.node, "50000")
        until(partial(answers, cluster, connect, f"{node.name}\n"))


def test_a_pod_with_the_driver_image_reaches_the_api_server(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    cluster.run("driver", nodes[1], driverimage.NAME)
    version = json.loads(cluster.exec("driver", "python3", "-c", GET_API_VERSION))
    assert version["gitVersion"] == kubernetes()


def test_a_container_with_a_claim_gets_the_cdi_device(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    with Plugin(node) as plugin:
        cluster.kubectl.apply(*plugin.objects("channel"))
        claims = [{"name": "channel", "resourceClaimTemplateName": "channel"}]
        with_claim = {"resources": {"claims": [{"name": "channel"}]}}
        cluster.run("claimant", node, resourceClaims=claims, container=with_claim)
        device = cluster.exec("claimant", "stat", "-c", "%F %t %T %a", DEVICE)
        assert device == "character special file ee 7 666\n"
        assert cluster.exec("claimant", "sh", "-c", "echo $CHANNEL") == "7\n"
        cluster.kubectl("delete", "pod", "claimant", "--timeout=120s", within=150)


def test_a_restarted_kubelet_keeps_running_pods(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    cluster.run("steady", node)
    before = cluster.status("steady")["containerStatuses"][0]
    node.kubelet.kill()
    assert node.kubelet.wait(within=60)
    node.kubelet.start()
    until(lambda: "hello" in output_or_error(cluster, "logs", "steady"))
    after = cluster.status("steady")["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)


def test_containers_keep_running_while_containerd_restarts(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    cluster.run("untouched", node)
    node.containerd.kill()
    assert node.containerd.wait(within=60)
    node.containerd.start()
    until(lambda: output_or_error(cluster, "exec", "untouched", "--", "hostname") == "untouched\n")


def test_nodes_work_after_a_restart_of_the_api_server(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    cluster.control_plane.kill_apiserver()
    cluster.control_plane.start_apiserver()
    cluster.run("afterwards", nodes[0])


def test_a_node_reconnects_to_the_api_server_and_runs_new_pods(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    node.relay.stop()
    cluster.create("late", node)
    node.relay.start()
    cluster.until_ready("late")


def answers(cluster: Cluster, words: tuple[str, ...], expected: str) -> bool:
    return output_or_error(cluster, *words) == expected


def output_or_error(cluster: Cluster, *words: str) -> str:
    try:
        return cluster.kubectl(*words)
    except Rejected as error:
        return str(error)


def test_a_stopped_node_leaves_no_processes_cgroups_or_mounts(cluster: Cluster) -> None:
    with cluster.node("brief") as node:
        cluster.run("short-lived", node)
        namespace = namespace_of(node.machine.pid)
        assert len(processes_in(namespace)) >= 4
        assert cgroups_of("brief")
    assert processes_in(namespace) == []
    assert not cgroups_of("brief")
    assert str(node.root) not in Path("/proc/self/mountinfo").read_text()


def test_the_root_of_a_node_can_be_below_a_directory_that_the_machine_hides(cluster: Cluster) -> None:
    with tempfile.TemporaryDirectory(prefix="ix", dir="/run") as root:
        hidden = Node("hidden", Path(root), control_plane=cluster.control_plane, network=cluster.network)
        with hidden:
            assert hidden.machine.run("ls", root).split() == sorted(path.name for path in Path(root).iterdir())


def test_a_crash_leaves_only_empty_cgroups_which_are_removed_later(short_path: Path) -> None:
    root = short_path / "x"
    root.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", CRASH, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout
        pid, interface = run.stdout.readline().split()
        namespace = namespace_of(int(pid))
        assert interface in interfaces()
        os.kill(run.pid, signal.SIGKILL)
    until(lambda: processes_in(namespace) == [])
    until(lambda: interface not in interfaces())
    cgroups.remove_stale()
    assert not cgroups_of("crash")


def test_a_root_whose_path_is_too_long_for_sockets_is_rejected(cluster: Cluster, tmp_path: Path) -> None:
    deep = tmp_path / "a-directory-with-a-name-that-is-far-too-long"
    with pytest.raises(Misconfigured, match="choose a shorter root"):
        Node("deep", deep, control_plane=cluster.control_plane, network=cluster.network)
