"""A real node on this machine: kubelet, containerd and runc in namespaces of their own.

    <root>/k          the kubelet's directory: /var/lib/kubelet inside
    <root>/run/cdi    CDI specs: /run/cdi inside
    <root>/log        /var/log inside, with the logs of pods
    <root>/*.log      what the node's own programs say

Several nodes run side by side. A plugin may run outside and use <root>/k, or in a pod and use /var/lib/kubelet.
For the first, the root must be short: a socket's path holds 107 bytes. After `stop` nothing is left but files;
after a crash, cgroups without processes are left too, and the next node to start removes them.
"""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from imex_dra.base.errors import Misconfigured, Rejected
from imex_dra.sandbox.kubernetes import cgroups, containerd, images, kubelet, relay
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.kubernetes.machine import Machine
from imex_dra.sandbox.kubernetes.network import Addresses, Network
from imex_dra.sandbox.process import Process

LONGEST_ROOT = 40


class Node:
    """Its `relay`, `containerd` and `kubelet` may be killed and started again at will."""

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
        """`archives` are images to load besides pause and busybox."""
        if len(str(root)) > LONGEST_ROOT:
            raise Misconfigured(f"node {name}: {root} is longer than {LONGEST_ROOT} bytes: choose a shorter root")
        self.name = name
        self.root = root
        self._control_plane = control_plane
        self._network = network
        self._archives = archives
        self._ready_within = ready_within
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.machine = Machine(name, root)
        self._undo = ExitStack()

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
        """Does not wait until the node is ready, so that several can be started together."""
        with ExitStack() as undo:
            undo.callback(cgroups.sweep)
            undo.callback(self.machine.stop)
            self.machine.start()
            self.addresses = self._network.plug_in(self.machine.pid)
            undo.callback(self._network.unplug, self.addresses)
            self._start_relay(undo)
            self._start_containerd(undo)
            self._start_kubelet(undo)
            self._undo = undo.pop_all()

    def until_ready(self) -> None:
        self.kubelet.until(self._ready, within=self._ready_within)

    def stop(self) -> None:
        """As if the power failed; its Node object stays in the API."""
        self._undo.close()

    def _start_relay(self, undo: ExitStack) -> None:
        self.relay = relay.process(self.machine, self._control_plane.address, self.root / "relay.log")
        undo.callback(self.relay.stop, within=0)
        self.relay.start()

    def _start_containerd(self, undo: ExitStack) -> None:
        runtime = containerd.Containerd(self.root, self.machine, self.addresses)
        self.containerd = runtime.process
        undo.callback(self.containerd.stop, within=0)
        runtime.start()
        for archive in (images.pause(), images.busybox(), *self._archives):
            runtime.load(archive)

    def _start_kubelet(self, undo: ExitStack) -> None:
        user = self._control_plane.identities.with_certificate(f"system:node:{self.name}", ["system:nodes"])
        shutil.copy(user, self.root / "kubeconfig")
        shutil.copy(self._control_plane.authority.certificate, self.root / "ca.crt")
        cgroup = cgroups.adopt(f"{self.name}-{self.machine.pid}", self.machine.pid)
        argv = kubelet.command(self.root, self.name, self.addresses, cgroup)
        self.kubelet = self.machine.process("kubelet", *argv)
        undo.callback(self.kubelet.stop, within=0)
        self.kubelet.start()

    def _ready(self) -> bool:
        try:
            node = self._control_plane.kubectl.get("node", self.name)
        except Rejected:
            return False
        conditions = {condition["type"]: condition["status"] for condition in node["status"]["conditions"]}
        return conditions.get("Ready") == "True" and not node["spec"].get("taints")
