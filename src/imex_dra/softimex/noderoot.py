"""The directory that stands for a simulated node: what its hardware, addresses, names and cables are.

Other programs rewrite these files while we run (faults, re-mapped addresses), so each is read anew when it
changed. A file that can't be understood keeps its last good content: half a file is no news.
"""

import json
import os
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from imex_dra.softimex.errors import StartError
from imex_dra.softimex.nodemap import parse_hosts

VARIABLE = "IMEX_NODE_ROOT"
DROP = -1.0

T = TypeVar("T")


class Hardware(NamedTuple):
    """What `hardware.json` says that matters here; `problem` is empty while the fabric can serve."""

    driver_version: str
    partition: str
    gpus: int
    problem: str


NO_GPU = Hardware("NO_GPU", "", 0, "the daemon runs in NO GPU MODE")
NO_HARDWARE = Hardware("", "", 0, "hardware.json of the node is missing or not readable")


class Watched(Generic[T]):
    """A file, parsed; read again only when its stamp changed."""

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
            self._renew()
        return self._value

    def _renew(self) -> None:
        try:
            with open(self._path) as file:
                self._value = self._parse(file.read())
        except (OSError, ValueError, TypeError, OverflowError, RecursionError):
            return


class NodeRoot:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.run = self.file("run")
        self.client_socket = self.file("run/client/imex.sock")
        self.channels = self.file("dev/nvidia-caps-imex-channels")
        self._addresses = Watched[tuple[str, ...]](self.file("addresses"), _parse_addresses, ())
        self._hosts = Watched[dict[str, str]](self.file("hosts"), parse_hosts, {})
        self._hardware = Watched(self.file("hardware.json"), parse_hardware, NO_HARDWARE)
        self._network = Watched[dict[str, float]](self.file("network.json"), parse_network, {})

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def addresses(self) -> tuple[str, ...]:
        return self._addresses.read()

    def hosts(self) -> dict[str, str]:
        return self._hosts.read()

    def hardware(self) -> Hardware:
        return self._hardware.read()

    def network(self) -> dict[str, float]:
        """Seconds of delay by peer address, or `DROP`."""
        return self._network.read()


def from_environment() -> NodeRoot:
    path = os.environ.get(VARIABLE)
    if not path:
        raise StartError(f"{VARIABLE} is not set: it names the directory of the simulated node")
    return NodeRoot(path)


def _parse_addresses(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def parse_network(text: str) -> dict[str, float]:
    """`{address: "drop"}` cuts a cable, `{address: 20}` delays what we send there by 20 ms."""
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
    return "" if partition else "the node is in no NVLink partition"


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value
