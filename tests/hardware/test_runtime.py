"""The device nodes and CDI edits of a claim on a real kubelet, containerd and runc: ordinary pods and pods with a
user namespace get exactly their channel from the same spec.

There is no GPU driver here. The stand-in is /dev/fuse: any user may open it, and the runtime allows it only to
containers that were given it, unlike /dev/null or /dev/zero. Its major and minor are those of "channel 229".
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from imex_dra.hardware.nvml import NvmlHardware
from imex_sandbox.kubernetes import images
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.network import Network
from imex_sandbox.kubernetes.node import Node
from tests.sandbox.kubernetes.plugin import Plugin

pytestmark = pytest.mark.node

MAJOR, CHANNEL, OTHER = 10, 229, 237
CLAIM = "e5f0c2a4-runtime-test"
DIRECTORY = "/dev/nvidia-caps-imex-channels"
DEVICE = f"{DIRECTORY}/channel{CHANNEL}"
HOST = Path("/dev/imex-dra")


class Cluster:
    def __init__(self, control_plane: ControlPlane, node: Node) -> None:
        self.kubectl = control_plane.kubectl
        self.node = node

    def user_namespaces(self) -> bool:
        handlers = self.kubectl.get("node", self.node.name)["status"].get("runtimeHandlers", [])
        return any(handler.get("features", {}).get("userNamespaces") for handler in handlers)

    def run(self, name: str, **spec: Any) -> None:
        container = {
            "name": "c",
            "image": images.BUSYBOX,
            "command": ["sleep", "1000"],
            "resources": {"claims": [{"name": "imex"}]},
        }
        claims = [{"name": "imex", "resourceClaimTemplateName": "channel"}]
        pod = {"terminationGracePeriodSeconds": 0, "containers": [container], "resourceClaims": claims, **spec}
        self.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod})
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")

    def sh(self, pod: str, script: str) -> str:
        """Output and errors of a shell in the pod."""
        return self.kubectl("exec", pod, "--", "sh", "-c", f"( {script} ) 2>&1; true").strip()


@pytest.fixture(scope="module")
def hardware(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvmlHardware]:
    """With the /dev of this machine, which its nodes share."""
    if f"{CHANNEL} fuse" not in Path("/proc/misc").read_text():
        pytest.skip("the kernel has no /dev/fuse, which stands in for a channel")
    root = tmp_path_factory.mktemp("host")
    (root / "dev").symlink_to("/dev")
    (root / "proc").mkdir()
    (root / "proc/devices").write_text(f"Character devices:\n {MAJOR} nvidia-caps-imex-channels\n")
    hardware = NvmlHardware(root)
    yield hardware
    hardware.remove_devices(CLAIM)
    if not hardware.claims_with_devices():
        shutil.rmtree(HOST)


@pytest.fixture(scope="module")
def cluster(hardware: NvmlHardware) -> Iterator[Cluster]:
    edits = msgspec.to_builtins(hardware.container_edits(CLAIM, [CHANNEL]))
    root = Path(tempfile.mkdtemp(prefix="ix", dir="/tmp"))
    with (
        ControlPlane(root / "cp") as control_plane,
        Network(root) as network,
        Node("n1", root / "n1", control_plane=control_plane, network=network) as node,
        Plugin(node, edits) as plugin,
    ):
        control_plane.kubectl.apply(*plugin.objects("channel"))
        yield Cluster(control_plane, node)
    shutil.rmtree(root)


USER_NAMESPACE: dict[str, Any] = {"hostUsers": False}
NON_ROOT: dict[str, Any] = {"securityContext": {"runAsUser": 1000, "runAsGroup": 1000}}


@pytest.fixture(
    scope="module",
    params=["ordinary", "ordinary-non-root", "user-namespace", "user-namespace-non-root"],
)
def pod(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    kind: str = request.param
    with_namespace = kind.startswith("user-namespace")
    if with_namespace and not cluster.user_namespaces():
        pytest.skip("runc is too old for pods with user namespaces: version 1.2 is required")
    spec = (USER_NAMESPACE if with_namespace else {}) | (NON_ROOT if kind.endswith("non-root") else {})
    cluster.run(kind, **spec)
    first_user = cluster.sh(kind, "cat /proc/self/uid_map").split()[1]
    assert (first_user != "0") == with_namespace
    yield kind
    cluster.kubectl("delete", "pod", kind)


def test_a_pod_has_exactly_its_channel(cluster: Cluster, pod: str) -> None:
    assert cluster.sh(pod, f"ls {DIRECTORY}") == f"channel{CHANNEL}"
    assert (
        cluster.sh(pod, f"stat -c '%F %t:%T %a' {DEVICE}") == f"character special file {MAJOR:x}:{CHANNEL:x} 666"
    )


def test_a_pod_can_open_its_channel_for_reading_and_writing(cluster: Cluster, pod: str) -> None:
    assert cluster.sh(pod, f"exec 3<>{DEVICE} && echo opened") == "opened"


def test_a_pod_cannot_change_the_device_node_of_the_host(cluster: Cluster, pod: str) -> None:
    assert cluster.sh(pod, f"chmod 600 {DEVICE}").endswith("Read-only file system")
    assert (HOST / f"claims/{CLAIM}/channel{CHANNEL}").stat().st_mode & 0o777 == 0o666


def test_a_pod_cannot_open_another_channel(cluster: Cluster, pod: str) -> None:
    """Root of an ordinary container can create the node, but its cgroup does not allow the device."""
    attempt = cluster.sh(pod, f"mknod /dev/other c {MAJOR} {OTHER} && exec 3<>/dev/other && echo opened")
    assert attempt.endswith(("Operation not permitted", "Permission denied"))


def test_a_pod_sees_no_device_node_of_other_claims(cluster: Cluster, pod: str) -> None:
    assert cluster.sh(pod, f"ls -A {HOST}") == "placeholder"
