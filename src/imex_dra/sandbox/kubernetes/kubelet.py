"""How a kubelet is configured here.

It runs on machines of any kind, cgroup v1 and swap among them. All cgroups of pods lie in one of the node's
own. It never evicts pods nor collects images: the disk is not the node's own. There is no DNS: whatever name a
pod asks for, the answer is no, at once.
"""

import json
from pathlib import Path
from typing import Any

from imex_dra.sandbox.kubernetes.binaries import find
from imex_dra.sandbox.kubernetes.containerd import SOCKET
from imex_dra.sandbox.kubernetes.network import Addresses

INSIDE = "/var/lib/kubelet"
PORT = 10250


def command(root: Path, name: str, addresses: Addresses, cgroup: str) -> list[str]:
    """Wants `kubeconfig` and `ca.crt` in the root."""
    config = root / "kubelet.json"
    config.write_text(json.dumps(_config(root, addresses, cgroup), indent=1))
    return [
        str(find("kubelet")),
        f"--config={config}",
        f"--kubeconfig={root}/kubeconfig",
        f"--root-dir={INSIDE}",
        f"--cert-dir={INSIDE}/pki",
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
        "volumePluginDir": f"{INSIDE}/volume-plugins",
        "resolvConf": "",
        "clusterDNS": [addresses.node],
        "failSwapOn": False,
        **_cgroups(cgroup),
        **_UNLIMITED,
    }


def _cgroups(cgroup: str) -> dict[str, Any]:
    return {
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": True,
        "cgroupRoot": cgroup,
        "enforceNodeAllocatable": [],
    }


_UNLIMITED = {
    "imageGCHighThresholdPercent": 100,
    "evictionHard": dict.fromkeys(("memory.available", "nodefs.available", "imagefs.available"), "0%"),
}
