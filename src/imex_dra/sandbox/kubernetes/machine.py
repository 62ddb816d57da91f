"""What stands for a node's machine: namespaces for processes, mounts, network, host name and IPC.

Whatever runs in it sees a machine of its own: an empty /run, /var/lib and /var/log, its own addresses, a pid
1. When pid 1 dies, the kernel ends every process and drops every mount, interface and namespace in it, and pid
1 dies with us: there is nothing to clean up after a crash. Only files in the root directory stay, which has
the same path inside and outside.
"""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from imex_dra.base.errors import Unavailable
from imex_dra.sandbox.kubernetes.binaries import cache_root
from imex_dra.sandbox.process import Process

# Directories that lie under a covered one are opened before and bound in place again after.
# With SIGCHLD ignored the kernel reaps orphans, so that `sleep` can be pid 1.
_INIT = """
set -eu
root=$1 cache=$2 name=$3
mount --make-rshared /
exec 8<"$root" 9<"$cache"
for covered in /run /var/lib; do mount -t tmpfs -o mode=755 tmpfs $covered; done
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


class Inhabitant(Process):
    """A process in another pid namespace, as its parent outside sees it (`unshare`, `nsenter`).

    Signals go to the child alone. Were the parent killed with it, nobody might ever reap the child, and the end
    of the namespace waits for that.
    """

    def kill(self, with_signal: signal.Signals = signal.SIGKILL) -> None:
        if self.running:
            for child in self.children():
                with suppress(ProcessLookupError):
                    os.kill(child, with_signal)

    def children(self) -> list[int]:
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(child) for child in found.split()]


class Machine:
    def __init__(self, name: str, root: Path) -> None:
        self._name = name
        self._root = root
        unshare = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        init = ["sh", "-c", _INIT, "init", str(root), str(cache_root()), name]
        self._init = Inhabitant(f"{name} init", [*unshare, *init], log=root / "machine.log")
        self.pid = 0

    def start(self) -> None:
        for directory in ("k", "log", "run/cdi"):
            (self._root / directory).mkdir(parents=True, exist_ok=True)
        self._init.start()
        self._init.until(self._set_up, within=20)

    def stop(self) -> None:
        self._init.stop(within=0)

    def process(self, name: str, *argv: str | Path) -> Process:
        """A program to be run inside, logging outside."""
        log = self._root / f"{name}.log"
        return Inhabitant(f"{name} of {self._name}", [*self._entered(), *argv], log=log)

    def run(self, *argv: str | Path) -> str:
        done = subprocess.run([*self._entered(), *argv], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"on node {self._name}, {' '.join(map(str, argv))} failed: {done.stderr.strip()}")
        return done.stdout

    def _entered(self) -> list[str]:
        return ["nsenter", f"--target={self.pid}", *_NAMESPACES, "--"]

    def _set_up(self) -> bool:
        """pid 1 is the one child of `unshare`; it has become `sleep` when all is mounted."""
        with suppress(IndexError, FileNotFoundError):
            self.pid = self._init.children()[0]
            return Path(f"/proc/{self.pid}/comm").read_text() == "sleep\n"
        return False
