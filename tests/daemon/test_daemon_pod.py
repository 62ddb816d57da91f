"""The daemon pod on a real kubelet, containerd and runc: nvidia-imex from a driver root, with TLS.

The pod contains busybox and the two scripts. Its nvidia-imex is soft IMEX in a driver root on the host, as the GPU
Operator mounts one. `imex node` is represented by the manager, which runs on the host of the node.
"""

import asyncio
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from imex_dra.api.names import DAEMON_SECRET
from imex_dra.api.nvlinknode import ImexState
from imex_dra.daemon.manager import DaemonManager
from imex_dra.daemon.state import DaemonState, PollIntervals
from imex_dra.daemon.supervisor import SCRIPT, Found, Supervisor, chroot_command
from imex_dra.imex.ctl import ImexCtl
from imex_dra.imex.memberlist import MemberList
from imex_sandbox.kubernetes import images
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.kubectl import Kubectl
from imex_sandbox.kubernetes.network import Network
from imex_sandbox.kubernetes.node import Node
from tests.daemon import driver_root
from tests.daemon.driver_root import DRIVER_ROOT, HOSTS
from tests.daemon.secret import certificate, new_authority
from tests.daemon.simulatednode import PARTITION
from tests.waiting import until, until_async

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

HOST = Path("/host")


class DaemonNode:
    def __init__(self, node: Node, kubectl: Kubectl) -> None:
        self.node = node
        self.kubectl = kubectl
        self.imex = node.root / "imex"
        self.files = Supervisor(self.imex)
        self.driver_root = node.root / "driver"
        self.states: list[DaemonState] = []

    def install_driver(self) -> None:
        """Mounts that the host makes later than the node, as a driver container does."""
        run = self.node.machine.run
        driver_root.build(self.driver_root, self.node.addresses.node, lambda *words: run("mount", *words))
        run("mkdir", "-p", DRIVER_ROOT)
        run("mount", "--rbind", self.driver_root, DRIVER_ROOT)

    def pod(self) -> dict[str, Any]:
        volumes: dict[str, dict[str, Any]] = {
            "host": {"hostPath": {"path": "/"}},
            "imex": {"hostPath": {"path": str(self.imex), "type": "DirectoryOrCreate"}},
            "scripts": {"hostPath": {"path": str(SCRIPT.parent)}},
            "tls": {"secret": {"secretName": DAEMON_SECRET, "optional": False}},
        }
        mounts = [
            {"name": "host", "mountPath": str(HOST), "mountPropagation": "HostToContainer"},
            {"name": "imex", "mountPath": str(self.imex)},
            {"name": "scripts", "mountPath": "/scripts"},
            {"name": "tls", "mountPath": "/etc/imex-dra/tls"},
        ]
        chroot = ["sh", "/scripts/chroot.sh", str(self.imex), str(HOST), "nvidia-imex"]
        container = {
            "name": "nvidia-imex",
            "image": images.BUSYBOX,
            "command": ["sh", "/scripts/supervisor.sh", str(self.imex), "--", *chroot],
            # A real one is privileged, because nvidia-imex opens devices. The mounts need no more than this.
            "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}},
            "volumeMounts": mounts,
        }
        spec = {
            "hostNetwork": True,
            "containers": [container],
            "volumes": [{"name": name, **source} for name, source in volumes.items()],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "imex-daemon"}, "spec": spec}

    def start_pod(self) -> None:
        self.kubectl.apply(self.pod())
        until(lambda: self.files.find() is not None, within=120, what=self.description())

    def description(self) -> str:
        return self.kubectl("get", "events,pods", "-A")

    def member_list(self) -> MemberList:
        address = self.node.addresses.node
        return MemberList(PARTITION, 1, 2, "imex-0a1b2c3d-%03d", {0: address}, 0, address)

    def found(self) -> Found:
        found = self.files.find()
        assert found is not None, self.description()
        return found

    @asynccontextmanager
    async def managed(self) -> AsyncIterator[None]:
        """By a manager that has just started."""
        # As in the pod of `imex node`: on the host, but with the host's root at another path.
        enter = ["nsenter", f"--target={self.node.machine.pid}", "--mount", "--net", "--"]
        ctl = ImexCtl([*enter, *chroot_command(self.imex, Path("/"), "nvidia-imex-ctl")], timeout=30)
        intervals = PollIntervals(0.2, 0.5, 1)
        manager = DaemonManager(self.files, ctl, self.states.append, poll_intervals=intervals, tls=True)
        manager.desire(self.member_list(), may_write=True, driver_root=DRIVER_ROOT)
        managing = asyncio.create_task(manager.run())
        try:
            yield
        finally:
            managing.cancel()
            await asyncio.wait({managing})

    async def until_connected(self) -> DaemonState:
        self.states.clear()
        try:
            await until_async(lambda: self.states and self.states[-1].connected == ())
        except AssertionError as error:
            logs = self.kubectl("logs", "imex-daemon")
            raise AssertionError(f"{error}; {self.states[-1:]}; {logs}\n{self.description()}") from None
        return self.states[-1]


@pytest.fixture(scope="module")
def daemon_node() -> Iterator[DaemonNode]:
    with (
        tempfile.TemporaryDirectory(prefix="ix", dir="/tmp") as directory,
        ControlPlane(Path(directory, "cp")) as control_plane,
        Network(Path(directory)) as network,
        Node("n1", Path(directory, "n1"), control_plane=control_plane, network=network) as node,
    ):
        yield DaemonNode(node, control_plane.kubectl)


async def write_secret(kubectl: Kubectl) -> None:
    authority = await new_authority()
    pair = await certificate(authority)
    files = {"tls.key": pair.key, "tls.crt": pair.certificate, "ca.crt": authority.certificate}
    data = {name: b64encode(content.encode()).decode() for name, content in files.items()}
    meta = {"name": DAEMON_SECRET, "namespace": "default"}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "kubernetes.io/tls", "data": data}
    )


async def test_a_daemon_pod_runs_nvidia_imex_of_the_driver_root_with_the_certificate_of_the_secret(
    daemon_node: DaemonNode,
) -> None:
    await write_secret(daemon_node.kubectl)
    daemon_node.start_pod()
    # Later than the pod: the mount reaches it, because its mounts receive those of the host.
    daemon_node.install_driver()
    async with daemon_node.managed():
        state = await daemon_node.until_connected()
    assert (state.state, state.index, state.problem) == (ImexState.READY, 0, "")
    found = daemon_node.found()
    assert found.loaded_certificate
    in_pod = daemon_node.kubectl("exec", "imex-daemon", "--", "readlink", f"/proc/{found.pid}/root").strip()
    assert in_pod == f"{HOST}{DRIVER_ROOT}"
    # Neither the key nor our hosts file is visible to others on the host.
    assert list((daemon_node.imex / "tls").iterdir()) == []
    assert daemon_node.node.machine.run("cat", f"{DRIVER_ROOT}/etc/hosts") == HOSTS
    async with daemon_node.managed():
        await daemon_node.until_connected()
    assert (daemon_node.found().pid, daemon_node.found().restarts) == (found.pid, 0)

    # The supervisor passes the signal of the kubelet on, and reports the end as one that it was told.
    daemon_node.kubectl("delete", "pod", "imex-daemon", "--timeout=60s", within=90)
    assert daemon_node.files.find() is None
    assert (daemon_node.imex / "status").read_text().startswith("state=stopped\npid=\n")
