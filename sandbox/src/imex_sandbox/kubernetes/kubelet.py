"""The command line and the configuration of a kubelet.

The kubelet works on any machine, including machines with cgroup v1 or swap. All cgroups of pods are in the cgroup
of the node. The kubelet does not evict pods and does not collect images, because it shares the disk with the
machine. There is no DNS server: nothing listens on the configured address, so that lookups fail at once.
"""

import json
from pathlib import Path
from typing import Any

from imex_sandbox.kubernetes.binaries import find
from imex_sandbox.kubernetes.containerd import SOCKET
from imex_sandbox.kubernetes.network import Addresses

_ROOT_DIR = "/var/lib/kubelet"
PORT = 10250


def command(root: Path, name: str, addresses: Addresses, cgroup: str) -> list[str]:
    """Requires `kubeconfig` and `ca.crt` in `root`."""
    config = root / "kubelet.json"
    config.write_text(json.dumps(_config(root, addresses, cgroup), indent=1))
    return [
        str(find("kubelet")),
        f"--config={config}",
        f"--kubeconfig={root}/kubeconfig",
        f"--root-dir={_ROOT_DIR}",
        f"--cert-dir={_ROOT_DIR}/pki",
        f"--hostname-override={name}",
        f"--node-ip={addresses.node}",
        "--v=2",
    ]


def _config(root: Path, addresses: Addresses, cgroup: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": addresses.node,
        "port": PORT,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{root}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "volumePluginDir": f"{_ROOT_DIR}/volume-plugins",
        "resolvConf": "",
        "clusterDNS": [addresses.node],
        "failSwapOn": False,
        **_cgroups(cgroup),
        **_NO_GARBAGE_COLLECTION,
    }


def _cgroups(cgroup: str) -> dict[str, Any]:
    return {
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": True,
        "cgroupRoot": cgroup,
        "enforceNodeAllocatable": [],
    }


_NO_GARBAGE_COLLECTION = {
    "imageGCHighThresholdPercent": 100,
    "evictionHard": dict.fromkeys(("memory.available", "nodefs.available", "imagefs.available"), "0%"),
}
