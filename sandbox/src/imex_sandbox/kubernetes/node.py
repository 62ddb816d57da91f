"""A real node on this machine: kubelet, containerd and runc in their own namespaces.

    <root>/k          /var/lib/kubelet of the node
    <root>/run/cdi    /run/cdi of the node, with CDI specs
    <root>/log        /var/log of the node, with the logs of pods
    <root>/*.log      logs of the programs of the node

Several nodes can run at the same time. A DRA plugin can run outside of the node and use <root>/k, or in a pod and
use /var/lib/kubelet. For a plugin outside, the path of the root must be short, because the path of a socket is
limited to 107 bytes. After `stop`, only files remain. After a crash, cgroups without processes remain too; the
next node that starts removes them.
"""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from imex_dra.base.errors import Misconfigured, Rejected
from imex_sandbox.kubernetes import cgroups, containerd, images, kubelet, relay
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.machine import Machine
from imex_sandbox.kubernetes.network import Addresses, Network
from imex_sandbox.process import Process

MAX_ROOT_LENGTH = 40


class Node:
    """Its `relay`, `containerd` and `kubelet` can be killed and started again at any time."""

    addresses: Addresses
    relay: Process
    containerd: Process
    kubelet: Process

    def __init__(
        self,
        name: str,
        root: Path,
        *,
        control_plane: ControlPlane,
        network: Network,
        archives: Sequence[Path] = (),
        ready_within: float = 60,
    ) -> None:
        """`archives` are OCI archives to load in addition to pause and busybox."""
        if len(str(root)) > MAX_ROOT_LENGTH:
            raise Misconfigured(
                f"node {name}: the path {root} is longer than {MAX_ROOT_LENGTH} bytes: choose a shorter root"
            )
        self.name = name
        self.root = root
        self._control_plane = control_plane
        self._network = network
        self._archives = archives
        self._ready_within = ready_within
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.machine = Machine(name, root)
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        self.start()
        try:
            self.until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Does not wait until the node is ready, so that several nodes can start at the same time."""
        with ExitStack() as cleanup:
            # Cleanup runs in reverse order: cgroups can be removed only after the machine has stopped.
            cleanup.callback(cgroups.remove_stale)
            cleanup.callback(self.machine.stop)
            self.machine.start()
            self.addresses = self._network.connect(self.machine.pid)
            cleanup.callback(self._network.disconnect, self.addresses)
            self._start_relay(cleanup)
            self._start_containerd(cleanup)
            self._start_kubelet(cleanup)
            self._cleanup = cleanup.pop_all()

    def until_ready(self) -> None:
        self.kubelet.until(self._is_ready, within=self._ready_within)

    def stop(self) -> None:
        """Stop at once, like a power failure. The Node object is not deleted."""
        self._cleanup.close()

    def _start_relay(self, cleanup: ExitStack) -> None:
        self.relay = relay.process(self.machine, self._control_plane.address, self.root / "relay.log")
        cleanup.callback(self.relay.stop, within=0)
        self.relay.start()

    def _start_containerd(self, cleanup: ExitStack) -> None:
        runtime = containerd.Containerd(self.root, self.machine, self.addresses)
        self.containerd = runtime.process
        cleanup.callback(self.containerd.stop, within=0)
        runtime.start()
        for archive in (images.pause(), images.busybox(), *self._archives):
            runtime.load(archive)

    def _start_kubelet(self, cleanup: ExitStack) -> None:
        user = self._control_plane.identities.with_certificate(f"system:node:{self.name}", ["system:nodes"])
        shutil.copy(user, self.root / "kubeconfig")
        shutil.copy(self._control_plane.authority.certificate, self.root / "ca.crt")
        cgroup = cgroups.create(f"{self.name}-{self.machine.pid}", self.machine.pid)
        argv = kubelet.command(self.root, self.name, self.addresses, cgroup)
        self.kubelet = self.machine.process("kubelet", *argv)
        cleanup.callback(self.kubelet.stop, within=0)
        self.kubelet.start()

    def _is_ready(self) -> bool:
        try:
            node = self._control_plane.kubectl.get("node", self.name)
        except Rejected:
            return False
        conditions = {condition["type"]: condition["status"] for condition in node["status"]["conditions"]}
        return conditions.get("Ready") == "True" and not node["spec"].get("taints")
