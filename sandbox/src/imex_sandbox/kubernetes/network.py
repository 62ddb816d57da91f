"""The network of one cluster: a bridge in its own network namespace, connected to the host and to all nodes.

Nodes and pods of a cluster are in one network segment, so that they reach each other without routes, and the API
server on the host reaches the kubelets. The host has one interface in it, `imex<number>`. Creating the interface
reserves the number, and with it the addresses. The kernel removes the interface when the namespace of the bridge
ends, which happens at the latest when this process dies.

    198.18.<16 number>.0/20                  the cluster (addresses reserved for network tests, RFC 2544)
    198.18.<16 number + node>.1              a node, and the gateway of its pods
    198.18.<16 number + node>.10 - .250      its pods
    198.18.<16 number + 15>.254              the host
"""

import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from imex_dra.base.errors import Unavailable
from imex_sandbox.kubernetes.binaries import find
from imex_sandbox.process import Process

PREFIX = 20
BRIDGE = "cni0"
NODES = 15
CLUSTERS = 16

_NET = "198.18"


class Addresses(NamedTuple):
    """The addresses of one node and its pods. The subnet is that of the cluster."""

    subnet: str
    node: str
    first_pod: str
    last_pod: str


class Network:
    def __init__(self, directory: Path) -> None:
        self._bridge = Process("bridge", ["unshare", "--net", "sleep", "infinity"], log=directory / "bridge.log")
        self.interface = ""
        self._base = 0
        self._connected: set[int] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._bridge.start()
        try:
            self._bridge.until(self._has_namespace, within=10)
            self._configure(self._reserve_number())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self.interface:
            _ip(f"link delete {self.interface}")
            self.interface = ""
        self._bridge.stop(within=0)

    def connect(self, pid: int) -> Addresses:
        """Connect the network namespace of a process: create a bridge in it that has the address of the node."""
        number = next(free for free in range(NODES) if free not in self._connected)
        self._connected.add(number)
        addresses = self._addresses(number)
        _ip(f"link add n{number} netns {self._bridge.pid} type veth peer name uplink netns {pid}")
        _ip(f"link set n{number} master br0 up", pid=self._bridge.pid)
        for command in (
            "link set lo up",
            f"link add {BRIDGE} address 02:00:00:00:00:{number:02x} type bridge",
            f"address add {addresses.node}/{PREFIX} dev {BRIDGE}",
            f"link set uplink master {BRIDGE} up",
            f"link set {BRIDGE} up",
        ):
            _ip(command, pid=pid)
        return addresses

    def disconnect(self, addresses: Addresses) -> None:
        """Release the addresses. The interface was removed together with the namespace of the node."""
        self._connected.discard(int(addresses.node.split(".")[2]) - self._base)

    def _reserve_number(self) -> int:
        for number in range(CLUSTERS):
            try:
                _ip(f"link add imex{number} type veth peer name host netns {self._bridge.pid}")
            except Unavailable as error:
                if "File exists" not in str(error):
                    raise
            else:
                return number
        raise Unavailable(f"all networks from imex0 to imex{CLUSTERS - 1} are in use: stop a cluster")

    def _configure(self, number: int) -> None:
        self.interface = f"imex{number}"
        self._base = 16 * number
        _ip(f"address add {_NET}.{self._base + 15}.254/{PREFIX} dev {self.interface}")
        _ip(f"link set {self.interface} up")
        _ip("link add br0 type bridge", pid=self._bridge.pid)
        _ip("link set host master br0 up", pid=self._bridge.pid)
        _ip("link set br0 up", pid=self._bridge.pid)

    def _addresses(self, number: int) -> Addresses:
        third = self._base + number
        pods = (f"{_NET}.{third}.10", f"{_NET}.{third}.250")
        return Addresses(f"{_NET}.{self._base}.0/{PREFIX}", f"{_NET}.{third}.1", *pods)

    def _has_namespace(self) -> bool:
        bridge, host = (Path(f"/proc/{pid}/ns/net").readlink() for pid in (self._bridge.pid, "self"))
        return bridge != host


def _ip(command: str, *, pid: int | None = None) -> None:
    """Run `ip` in the network namespace of a process, or in that of the host."""
    nsenter = ["nsenter", f"--target={pid}", "--net"] if pid else []
    done = subprocess.run([*nsenter, find("ip"), *command.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"ip {command} failed: {done.stderr.strip()}")
