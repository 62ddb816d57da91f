"""The directory that represents a simulated node: its addresses, host names, hardware and network faults.

Other programs rewrite these files while the daemon runs, for example to inject a fault or to move a node to
another address. Each file is read again after it changed.
"""

import json
import os
import re
import socket
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from imex_sandbox.softimex.errors import StartError
from imex_sandbox.softimex.sockets import is_address

NODE_ROOT_VARIABLE = "IMEX_NODE_ROOT"
DROP = -1.0
ROUTES = "/proc/net/fib_trie"
INTERFACES_V6 = "/proc/net/if_inet6"

T = TypeVar("T")


class Hardware(NamedTuple):
    """The fields of `hardware.json` that matter here. `problem` says why memory cannot be exchanged, if so."""

    driver_version: str
    partition: str
    gpus: int
    problem: str


NO_GPU = Hardware("NO_GPU", "", 0, "the daemon runs in NO GPU MODE")
NO_HARDWARE = Hardware("", "", 0, "hardware.json of the node is missing or invalid")


class WatchedFile(Generic[T]):
    """A parsed file that is read again only after its mtime, inode or size changed."""

    def __init__(self, path: str, parse: Callable[[str], T], absent: T) -> None:
        self._path, self._parse, self._absent = path, parse, absent
        self._stamp: tuple[int, int, int] | None = None
        self._value = absent

    def read(self) -> T:
        try:
            status = os.stat(self._path)
        except OSError:
            self._stamp, self._value = None, self._absent
            return self._value
        stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        if stamp != self._stamp:
            self._stamp = stamp
            self._reload()
        return self._value

    def _reload(self) -> None:
        try:
            with open(self._path) as file:
                self._value = self._parse(file.read())
        except (OSError, ValueError, TypeError, OverflowError, RecursionError):
            # Keep the last valid content: the file may be half written.
            return


class NodeRoot:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.run = self.file("run")
        self.client_socket = self.file("run/client/imex.sock")
        self.channels = self.file("dev/nvidia-caps-imex-channels")
        self._addresses = WatchedFile[tuple[str, ...] | None](self.file("addresses"), _parse_addresses, None)
        self._hosts = WatchedFile[dict[str, str]](self.file("hosts"), parse_hosts, {})
        self._hardware = WatchedFile(self.file("hardware.json"), parse_hardware, NO_HARDWARE)
        self._network = WatchedFile[dict[str, float]](self.file("network.json"), parse_network, {})

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def addresses(self) -> tuple[str, ...]:
        """Without the file, those of the network namespace: the node or its pod has one of its own."""
        listed = self._addresses.read()
        return interface_addresses() if listed is None else listed

    def hosts(self) -> dict[str, str]:
        return self._hosts.read()

    def hardware(self) -> Hardware:
        return self._hardware.read()

    def network(self) -> dict[str, float]:
        """Network faults by peer address: seconds of delay, or `DROP`."""
        return self._network.read()

    def require_hardware(self) -> Hardware:
        """The hardware, which must exist when the daemon starts; its health may change later."""
        hardware = self.hardware()
        if hardware is NO_HARDWARE:
            raise StartError(
                f"no GPU driver: {self.file('hardware.json')} is missing or is not valid JSON."
                " Write it, or start with --nogpu"
            )
        return hardware


def from_environment() -> NodeRoot:
    path = os.environ.get(NODE_ROOT_VARIABLE)
    if not path:
        raise StartError(f"{NODE_ROOT_VARIABLE} is not set: set it to the directory of the simulated node")
    return NodeRoot(path)


def _parse_addresses(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def interface_addresses() -> tuple[str, ...]:
    found = re.findall(r"\|-- (\S+)\n\s+/32 host LOCAL", _read(ROUTES))
    found += [
        socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0]))
        for line in _read(INTERFACES_V6).splitlines()
    ]
    return tuple(dict.fromkeys(found))


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        # A kernel without IPv6 has no such file.
        return ""


def parse_hosts(text: str) -> dict[str, str]:
    """Addresses by name, in the syntax of /etc/hosts. The first line with a name wins."""
    hosts: dict[str, str] = {}
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        for name in names:
            hosts.setdefault(name, address)
    return {name: address for name, address in hosts.items() if is_address(address)}


def parse_network(text: str) -> dict[str, float]:
    """`{address: "drop"}` blocks the network to a peer, `{address: 20}` delays messages to it by 20 ms."""
    network = {}
    for address, fault in _object(json.loads(text)).items():
        network[address] = DROP if fault == "drop" else max(0.0, float(fault) / 1000)
    return network


def parse_hardware(text: str) -> Hardware:
    content = _object(json.loads(text))
    fabric = _object(content.get("fabric") or {})
    partition = str(content.get("partition") or "")
    return Hardware(
        driver_version=str(content.get("driverVersion") or ""),
        partition=partition,
        gpus=len(content.get("gpus") or ()),
        problem=_problem(partition, str(fabric.get("state", "pending")), str(fabric.get("reason") or "")),
    )


def _problem(partition: str, state: str, reason: str) -> str:
    if state != "ok":
        return f"the fabric of the node is {state}: {reason or 'no reason given'}"
    return "" if partition else "the node is not in an NVLink partition"


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value
