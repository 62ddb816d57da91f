"""containerd of one node, where it always is: /run/containerd and /var/lib/containerd, in the machine's memory.

Settings that matter here: CDI devices come from the node's own directory; the sandbox image is ours and pinned,
so that nothing is ever pulled; `restrict_oom_score_adj`, because not even root may lower scores without
CAP_SYS_RESOURCE.
"""

import json
from pathlib import Path

from imex_dra.base.errors import Unavailable
from imex_dra.sandbox.kubernetes import images, tools
from imex_dra.sandbox.kubernetes.binaries import find
from imex_dra.sandbox.kubernetes.machine import Machine
from imex_dra.sandbox.kubernetes.network import BRIDGE, Addresses

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
        config = self._configured(addresses)
        self.process = machine.process("containerd", find("containerd"), "--config", config)

    def start(self) -> None:
        self.process.start()
        self.process.until(self._serves, within=30)

    def load(self, archive: Path) -> None:
        """Import the images of an archive."""
        self._ctr("images", "import", archive)

    def _serves(self) -> bool:
        try:
            self._ctr("version")
        except Unavailable:
            return False
        return True

    def _ctr(self, *words: str | Path) -> None:
        self._machine.run(find("ctr"), "--namespace=k8s.io", *words)

    def _configured(self, addresses: Addresses) -> Path:
        network = self._root / "cni" / "bridge.conflist"
        network.parent.mkdir(exist_ok=True)
        network.write_text(json.dumps(_network(addresses)))
        config = self._root / "containerd.toml"
        found = {"plugins": tools.network_plugins(), "runc": tools.runc()}
        config.write_text(_CONFIG.format(root=self._root, pause=images.PAUSE, **found))
        return config


def _network(addresses: Addresses) -> dict[str, object]:
    """Pods hang on the node's bridge, which hangs on the cluster's switch."""
    pods = {
        "subnet": addresses.subnet,
        "rangeStart": addresses.first_pod,
        "rangeEnd": addresses.last_pod,
        "gateway": addresses.node,
    }
    ipam = {"type": "host-local", "ranges": [[pods]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
