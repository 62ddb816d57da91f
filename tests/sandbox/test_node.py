import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imex_dra.base.errors import Misconfigured, Rejected
from imex_dra.sandbox.kubernetes import cgroups, images, pythonimage
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.kubernetes.network import Network
from imex_dra.sandbox.kubernetes.node import Node
from tests.sandbox.plugin import DEVICE, Plugin
from tests.sandbox.waiting import eventually

pytestmark = pytest.mark.node

CRASH = """
import sys
from pathlib import Path
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.kubernetes.network import Network
from imex_dra.sandbox.kubernetes.node import Node
root = Path(sys.argv[1])
with ControlPlane(root / "cp") as control_plane, Network(root) as network:
    with Node("crash", root / "crash", control_plane=control_plane, network=network) as node:
        print(node.machine.pid, network.interface, flush=True)
        input()
"""
ASK_THE_API = """
import os, ssl, urllib.request
import grpc, imex_dra
account = "/var/run/secrets/kubernetes.io/serviceaccount"
host = os.environ["KUBERNETES_SERVICE_HOST"]
token = open(f"{account}/token").read()
request = urllib.request.Request(f"https://{host}/version", headers={"Authorization": f"Bearer {token}"})
trust = ssl.create_default_context(cafile=f"{account}/ca.crt")
print(urllib.request.urlopen(request, context=trust).read().decode())
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
        """A pod that says hello and stays."""
        container = {"name": "c", "image": image, "command": ["sh", "-c", "echo hello; exec sleep 1000"]}
        container |= spec.pop("container", {})
        pod = {"nodeName": node.name, "terminationGracePeriodSeconds": 0, "containers": [container], **spec}
        if "resourceClaims" in pod:
            pod["nodeSelector"] = {"kubernetes.io/hostname": pod.pop("nodeName")}
        self.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod})

    def until_ready(self, name: str) -> None:
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")

    def inside(self, name: str, *command: str) -> str:
        return self.kubectl("exec", name, "--", *command)

    def status(self, name: str) -> Any:
        return self.kubectl.get("pod", name)["status"]


@pytest.fixture(scope="module")
def short() -> Iterator[Path]:
    """Sockets lie in it, so its path must be shorter than pytest's."""
    root = Path(tempfile.mkdtemp(prefix="ix", dir="/tmp"))
    yield root
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def cluster(short: Path) -> Iterator[Cluster]:
    with ControlPlane(short / "cp") as control_plane, Network(short) as network:
        yield Cluster(control_plane, network, short)


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> Iterator[tuple[Node, Node]]:
    one, two = cluster.node("one"), cluster.node("two", pythonimage.imex())
    with one, two:
        yield one, two


def processes_of(pid_namespace: Path) -> list[str]:
    """Living ones: a zombie has no namespaces any more."""

    def lives_there(process: Path) -> bool:
        try:
            return (process / "ns" / "pid").readlink() == pid_namespace
        except OSError:
            return False

    return [process.name for process in Path("/proc").glob("[0-9]*") if lives_there(process)]


def cgroups_of(node: str) -> list[Path]:
    everywhere = [group for hierarchy in cgroups.hierarchies() for group in cgroups.groups(hierarchy)]
    return [group for group in everywhere if group.name.startswith(f"{node}-")]


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def namespace_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/pid").readlink()


def test_nodes_join_side_by_side(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    versions = {
        node["metadata"]["name"]: node["status"]["nodeInfo"] for node in cluster.kubectl.get("nodes")["items"]
    }
    assert versions.keys() == {"one", "two"}
    assert {info["kubeletVersion"] for info in versions.values()} == {"v1.36.4"}
    assert all(info["containerRuntimeVersion"].startswith("containerd://2.") for info in versions.values())


def test_a_pod_runs_and_can_be_looked_into(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    cluster.run("hello", nodes[0])
    assert cluster.kubectl("logs", "hello") == "hello\n"
    assert cluster.inside("hello", "hostname") == "hello\n"


def test_pods_of_two_nodes_reach_each_other(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    cluster.run("here", nodes[0])
    cluster.run("there", nodes[1])
    assert "1 packets received" in cluster.inside("here", "ping", "-c1", cluster.status("there")["podIP"])


def test_host_network_is_the_nodes_own(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    listen = {"command": ["sh", "-c", "while :; do hostname | nc -l -p 50000; done"]}
    for name, node in zip(("left", "right"), nodes, strict=True):
        cluster.run(name, node, hostNetwork=True, container=listen)
        assert cluster.inside(name, "nc", node.addresses.node, "50000") == f"{node.name}\n"


def test_our_own_image_reaches_the_api_as_any_pod_does(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    cluster.run("own", nodes[1], pythonimage.IMEX)
    answer = json.loads(cluster.inside("own", "python3", "-c", ASK_THE_API))
    assert answer["gitVersion"] == "v1.36.4"


def test_a_claim_puts_a_cdi_device_into_the_container(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    with Plugin(node) as plugin:
        cluster.kubectl.apply(*plugin.objects("channel"))
        claims = [{"name": "channel", "resourceClaimTemplateName": "channel"}]
        with_claim = {"resources": {"claims": [{"name": "channel"}]}}
        cluster.run("claimant", node, resourceClaims=claims, container=with_claim)
        seen = cluster.inside("claimant", "stat", "-c", "%F %t %T %a", DEVICE)
        assert seen == "character special file ee 7 666\n"
        assert cluster.inside("claimant", "sh", "-c", "echo $CHANNEL") == "7\n"
        cluster.kubectl("delete", "pod", "claimant", "--timeout=120s")


def test_a_killed_kubelet_finds_its_pods_again(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    cluster.run("steady", node)
    before = cluster.status("steady")["containerStatuses"][0]
    node.kubelet.kill()
    assert node.kubelet.ended(within=60)
    node.kubelet.start()
    assert eventually(lambda: "hello" in attempted(cluster, "logs", "steady"))
    after = cluster.status("steady")["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)


def test_a_killed_containerd_keeps_its_containers(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    cluster.run("untouched", node)
    node.containerd.kill()
    assert node.containerd.ended(within=60)
    node.containerd.start()
    assert eventually(lambda: attempted(cluster, "exec", "untouched", "--", "hostname") == "untouched\n")


def test_nodes_outlive_a_restart_of_the_api_server(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    cluster.control_plane.kill_apiserver()
    cluster.control_plane.start_apiserver()
    cluster.run("afterwards", nodes[0])


def test_a_node_cut_from_the_api_server_catches_up(cluster: Cluster, nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    node.relay.stop()
    cluster.create("late", node)
    node.relay.start()
    cluster.until_ready("late")


def attempted(cluster: Cluster, *words: str) -> str:
    try:
        return cluster.kubectl(*words)
    except Rejected as error:
        return str(error)


def test_a_stopped_node_leaves_nothing(cluster: Cluster) -> None:
    with cluster.node("brief") as node:
        cluster.run("short-lived", node)
        namespace = namespace_of(node.machine.pid)
        assert len(processes_of(namespace)) >= 4
        assert cgroups_of("brief")
    assert processes_of(namespace) == []
    assert not cgroups_of("brief")
    assert str(node.root) not in Path("/proc/self/mountinfo").read_text()


def test_a_root_may_lie_where_the_machine_hides_the_hosts_files(cluster: Cluster) -> None:
    with tempfile.TemporaryDirectory(prefix="ix", dir="/run") as root:
        hidden = Node("hidden", Path(root), control_plane=cluster.control_plane, network=cluster.network)
        with hidden:
            assert hidden.machine.run("ls", root).split() == sorted(path.name for path in Path(root).iterdir())


def test_a_crashed_run_leaves_nothing_but_empty_cgroups_and_those_go(short: Path) -> None:
    root = short / "x"
    root.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", CRASH, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout
        pid, interface = run.stdout.readline().split()
        namespace = namespace_of(int(pid))
        assert interface in interfaces()
        os.kill(run.pid, signal.SIGKILL)
    assert eventually(lambda: processes_of(namespace) == [])
    assert eventually(lambda: interface not in interfaces())
    cgroups.sweep()
    assert not cgroups_of("crash")


def test_a_root_too_long_for_sockets_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    deep = tmp_path / "a-directory-with-a-name-that-is-far-too-long"
    with pytest.raises(Misconfigured, match="choose a shorter root"):
        Node("deep", deep, control_plane=cluster.control_plane, network=cluster.network)
