"""The machine of a node: its own PID, mount, network, UTS and IPC namespaces.

Processes in it see an empty /run, /var/lib and /var/log, their own network addresses, and a pid 1. When pid 1
dies, the kernel kills all processes in the namespaces and removes their mounts and network interfaces. Pid 1 dies
with this process, so a crash leaves nothing to clean up. Only the files in the root directory remain. The root
directory has the same path inside and outside.
"""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from imex_dra.base.errors import Unavailable
from imex_sandbox.kubernetes.binaries import cache_root
from imex_sandbox.process import Process

# The root and the cache can be below a directory that a tmpfs hides: they are opened before, and mounted again at
# the same path after. With SIGCHLD ignored, the kernel reaps orphans, so that `sleep` can be pid 1.
_INIT = """
set -eu
root=$1 cache=$2 name=$3
mount --make-rshared /
exec 8<"$root" 9<"$cache"
for hidden in /run /var/lib; do mount -t tmpfs -o mode=755 tmpfs $hidden; done
mkdir -p "$root" "$cache" /run/cdi /var/lib/kubelet
mount --no-canonicalize --bind /proc/self/fd/8 "$root"
mount --no-canonicalize --bind /proc/self/fd/9 "$cache"
mount --bind "$root/log" /var/log
mount --bind "$root/run/cdi" /run/cdi
mount --rbind "$root/k" /var/lib/kubelet
echo "$name" > /proc/sys/kernel/hostname
exec env --ignore-signal=CHLD sleep infinity
"""
_NAMESPACES = ("--pid", "--mount", "--net", "--uts", "--ipc")


class NamespacedProcess(Process):
    """A process in another PID namespace, and its parent outside (`unshare` or `nsenter`).

    Signals are sent only to the child. If the parent were killed too, the child might not be reaped, and the PID
    namespace cannot end before all of its processes are reaped.
    """

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.running:
            for child in self.children():
                with suppress(ProcessLookupError):
                    os.kill(child, number)

    def children(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(child) for child in children.split()]


class Machine:
    def __init__(self, name: str, root: Path) -> None:
        self._name = name
        self._root = root
        unshare = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        init = ["sh", "-c", _INIT, "init", str(root), str(cache_root()), name]
        self._init = NamespacedProcess(f"{name} init", [*unshare, *init], log=root / "machine.log")
        self.pid = 0

    def start(self) -> None:
        for directory in ("k", "log", "run/cdi"):
            (self._root / directory).mkdir(parents=True, exist_ok=True)
        self._init.start()
        self._init.until(self._is_ready, within=20)

    def stop(self) -> None:
        self._init.stop(within=0)

    def process(self, name: str, *argv: str | Path) -> Process:
        """A program that runs in the machine and writes its log to the root directory."""
        log = self._root / f"{name}.log"
        return NamespacedProcess(f"{name} of {self._name}", [*self._nsenter(), *argv], log=log)

    def run(self, *argv: str | Path) -> str:
        done = subprocess.run([*self._nsenter(), *argv], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"{' '.join(map(str, argv))} failed on node {self._name}: {done.stderr.strip()}")
        return done.stdout

    def _nsenter(self) -> list[str]:
        return ["nsenter", f"--target={self.pid}", *_NAMESPACES, "--"]

    def _is_ready(self) -> bool:
        """Pid 1 is the only child of `unshare`. It executes `sleep` when everything is mounted."""
        with suppress(IndexError, FileNotFoundError):
            self.pid = self._init.children()[0]
            return Path(f"/proc/{self.pid}/comm").read_text() == "sleep\n"
        return False
