"""Whether another process of the host has a port that nvidia-imex needs.

50000 and 50005 are in the range from which Linux takes ports for outgoing connections, so any program may have one
by chance. /proc/1/net has the sockets of the host's network, in whichever one this program runs.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from imex_dra.hardware.host import read_text

_TABLES = ("tcp", "tcp6")
_NO_PROCESS = "0"
"""Inode of a connection that the kernel still closes, after its process. It prevents no listener."""


class PortHolder(NamedTuple):
    port: int
    pid: int = 0
    """0 if it is not found."""
    program: str = ""


def find_port_holder(proc: Path, ports: Collection[int], own_pids: Iterable[int]) -> PortHolder | None:
    """Another process than our own ones that has one of the ports. `proc` is that of the host."""
    sockets = _foreign_sockets(proc, ports, own_pids)
    if not sockets:
        return None
    holders = [
        PortHolder(sockets[inode], pid, read_text(proc / str(pid) / "comm").strip())
        for pid in _pids(proc)
        for inode in _socket_inodes(proc, pid) & sockets.keys()
    ]
    # Our nvidia-imex may have started, or ended, since the sockets were read.
    if not sockets.keys() & _foreign_sockets(proc, ports, own_pids).keys():
        return None
    return holders[0] if holders else PortHolder(min(sockets.values()))


def local_sockets(table: str, ports: Collection[int]) -> dict[str, int]:
    """Inode and port of each socket with one of these local ports. `table` is the content of /proc/net/tcp."""
    found = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        with suppress(IndexError, ValueError):
            port = int(fields[1].rpartition(":")[2], 16)
            if port in ports and fields[9] != _NO_PROCESS:
                found[fields[9]] = port
    return found


def _foreign_sockets(proc: Path, ports: Collection[int], own_pids: Iterable[int]) -> Mapping[str, int]:
    sockets: dict[str, int] = {}
    for name in _TABLES:
        sockets |= local_sockets(read_text(proc / "1/net" / name), ports)
    # Only then, so that few descriptors are read while no other process has a port.
    own = {inode for pid in own_pids for inode in _socket_inodes(proc, pid)} if sockets else set()
    return {inode: port for inode, port in sockets.items() if inode not in own}


def _socket_inodes(proc: Path, pid: int) -> set[str]:
    found = set()
    with suppress(OSError):  # it has ended
        for descriptor in os.scandir(proc / str(pid) / "fd"):
            with suppress(OSError):
                target = os.readlink(descriptor.path)  # noqa: PTH115 - thousands of them
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def _pids(proc: Path) -> Iterator[int]:
    return (int(path.name) for path in proc.glob("[0-9]*"))
