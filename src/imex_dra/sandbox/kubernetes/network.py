"""The network of one cluster's nodes: a switch in a namespace of its own, with one cable to the host.

Nodes and pods of a cluster lie in one segment, so that they reach each other without routes, and the API
server on the host reaches the kubelets. The host has a single interface of it, `imex<number>`, whose creation
claims the number and thereby the addresses. It goes when the switch's namespace goes, and that dies with us.

    198.18.<16 number>.0/20                  the cluster (addresses reserved for tests of networks)
    198.18.<16 number + node>.1              a node, and the gateway of its pods
    198.18.<16 number + node>.10 - .250      its pods
    198.18.<16 number + 15>.254              the host
"""

import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from imex_dra.base.errors import Unavailable
from imex_dra.sandbox.kubernetes.binaries import find
from imex_dra.sandbox.process import Process

PREFIX = 20
BRIDGE = "cni0"
NODES = 15
CLUSTERS = 16

_NET = "198.18"


class Addresses(NamedTuple):
    """Of one node and its pods, all in one subnet."""

    subnet: str
    node: str
    first_pod: str
    last_pod: str


class Network:
    def __init__(self, directory: Path) -> None:
        self._switch = Process("switch", ["unshare", "--net", "sleep", "infinity"], log=directory / "switch.log")
        self.interface = ""
        self._base = 0
        self._plugged: set[int] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._switch.start()
        try:
            self._switch.until(self._apart, within=10)
            self._set_up(self._claim())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self.interface:
            _ip(f"link delete {self.interface}")
            self.interface = ""
        self._switch.stop(within=0)

    def plug_in(self, pid: int) -> Addresses:
        """Connect a process's network namespace: a bridge inside, with the node's address."""
        number = next(free for free in range(NODES) if free not in self._plugged)
        self._plugged.add(number)
        addresses = self._addresses(number)
        _ip(f"link add n{number} netns {self._switch.pid} type veth peer name uplink netns {pid}")
        _ip(f"link set n{number} master switch up", inside=self._switch.pid)
        for command in (
            "link set lo up",
            f"link add {BRIDGE} address 02:00:00:00:00:{number:02x} type bridge",
            f"address add {addresses.node}/{PREFIX} dev {BRIDGE}",
            f"link set uplink master {BRIDGE} up",
            f"link set {BRIDGE} up",
        ):
            _ip(command, inside=pid)
        return addresses

    def unplug(self, addresses: Addresses) -> None:
        """Its end of the cable is gone with its namespace; its addresses are free again."""
        self._plugged.discard(int(addresses.node.split(".")[2]) - self._base)

    def _claim(self) -> int:
        for number in range(CLUSTERS):
            try:
                _ip(f"link add imex{number} type veth peer name host netns {self._switch.pid}")
            except Unavailable as error:
                if "File exists" not in str(error):
                    raise
            else:
                return number
        raise Unavailable(f"all {CLUSTERS} networks imex0 to imex{CLUSTERS - 1} are in use: stop a cluster")

    def _set_up(self, number: int) -> None:
        self.interface = f"imex{number}"
        self._base = 16 * number
        _ip(f"address add {_NET}.{self._base + 15}.254/{PREFIX} dev {self.interface}")
        _ip(f"link set {self.interface} up")
        _ip("link add switch type bridge", inside=self._switch.pid)
        _ip("link set host master switch up", inside=self._switch.pid)
        _ip("link set switch up", inside=self._switch.pid)

    def _addresses(self, number: int) -> Addresses:
        third = self._base + number
        pods = (f"{_NET}.{third}.10", f"{_NET}.{third}.250")
        return Addresses(f"{_NET}.{self._base}.0/{PREFIX}", f"{_NET}.{third}.1", *pods)

    def _apart(self) -> bool:
        own, host = (Path(f"/proc/{pid}/ns/net").readlink() for pid in (self._switch.pid, "self"))
        return own != host


def _ip(command: str, *, inside: int | None = None) -> None:
    entered = ["nsenter", f"--target={inside}", "--net"] if inside else []
    done = subprocess.run([*entered, find("ip"), *command.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"ip {command}: {done.stderr.strip()}")
