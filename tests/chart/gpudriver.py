"""The GPU driver of a GB200 node on the machine of a real kubelet, as the GPU Operator installs it.

At /run/nvidia/driver is its root: a stub of NVML, and soft IMEX as nvidia-imex. What the kernel module would add
to /proc and /sys is mounted there, in the mount namespace of the node. The node has a /dev of its own, because
`imex node` creates device nodes in it.
"""

import shutil
from pathlib import Path

from imex_sandbox.kubernetes.node import Node
from tests.daemon import driver_root
from tests.nvml.stub import StubHost

_KERNEL = """
set -eu
cd "$1"
mount --bind proc/devices /proc/devices
mount --bind proc/driver /proc/driver
mount --bind sys/bus /sys/bus
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty ptmx; do cp --archive "/dev/$name" dev; done
for name in pts shm; do mkdir "dev/$name" && mount --rbind "/dev/$name" "dev/$name"; done
mount --rbind dev /dev
mkdir -p "$3"
mount --rbind "$2" "$3"
"""
_LIBRARIES = Path("usr/lib64")


def install(node: Node, library: Path) -> None:
    """`library` is the stub of NVML."""
    run, root = node.machine.run, node.root / "driver"
    kernel = StubHost(node.root / "gpu", library).root
    # With what this machine has there: the loader of programs.
    if (here := Path("/", _LIBRARIES)).exists():
        shutil.copytree(here, root / _LIBRARIES, symlinks=True)
    shutil.copytree(kernel / _LIBRARIES, root / _LIBRARIES, dirs_exist_ok=True)
    driver_root.build(root, node.addresses.node, lambda *words: run("mount", *words))
    # Soft IMEX then has the addresses of its network: that of the node, or that of a pod.
    (root / "addresses").unlink()
    run("sh", "-c", _KERNEL, "sh", kernel, root, driver_root.DRIVER_ROOT)
