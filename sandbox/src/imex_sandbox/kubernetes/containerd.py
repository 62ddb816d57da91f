"""containerd of one node.

Its state is in /run/containerd and /var/lib/containerd, which are on a tmpfs of the machine of the node. CDI
specs are read from the directory of the node. The sandbox image is pinned to the `pause` image of `images`, so
that nothing is pulled. `restrict_oom_score_adj` is set because root cannot lower OOM scores without
CAP_SYS_RESOURCE.
"""

import json
from pathlib import Path

from imex_dra.base.errors import Unavailable
from imex_sandbox.kubernetes import images, packages
from imex_sandbox.kubernetes.binaries import find
from imex_sandbox.kubernetes.machine import Machine
from imex_sandbox.kubernetes.network import BRIDGE, Addresses

SOCKET = "/run/containerd/containerd.sock"

_CONFIG = """\
version = 3
imports = []
disabled_plugins = ["io.containerd.nri.v1.nri"]

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = ["/run/cdi"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{root}/cni"
use_internal_loopback = true

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
"""


class Containerd:
    def __init__(self, root: Path, machine: Machine, addresses: Addresses) -> None:
        self._root = root
        self._machine = machine
        config = self._write_config(addresses)
        self.process = machine.process("containerd", find("containerd"), "--config", config)

    def start(self) -> None:
        self.process.start()
        self.process.until(self._responds, within=30)

    def load(self, archive: Path) -> None:
        """Import all images of an OCI archive."""
        self._ctr("images", "import", archive)

    def _responds(self) -> bool:
        try:
            self._ctr("version")
        except Unavailable:
            return False
        return True

    def _ctr(self, *words: str | Path) -> None:
        self._machine.run(find("ctr"), "--namespace=k8s.io", *words)

    def _write_config(self, addresses: Addresses) -> Path:
        network = self._root / "cni" / "bridge.conflist"
        network.parent.mkdir(exist_ok=True)
        network.write_text(json.dumps(_cni_config(addresses)))
        config = self._root / "containerd.toml"
        programs = {"plugins": packages.cni_plugins(), "runc": packages.runc()}
        config.write_text(_CONFIG.format(root=self._root, pause=images.PAUSE, **programs))
        return config


def _cni_config(addresses: Addresses) -> dict[str, object]:
    """Pods are connected to the bridge of the node, which is connected to the bridge of the cluster."""
    pod_range = {
        "subnet": addresses.subnet,
        "rangeStart": addresses.first_pod,
        "rangeEnd": addresses.last_pod,
        "gateway": addresses.node,
    }
    ipam = {"type": "host-local", "ranges": [[pod_range]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
