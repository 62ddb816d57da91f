"""A cluster's name and number, held while it lives.

Each is an abstract unix socket: bound by one process at a time, and free again when the last process that has it
is gone, however it went. No lock file can be left over, and whoever finds a name taken learns the holder's pid
from the kernel. A name is a user's own; numbers (networks 127.16, 127.17, …) are everybody's on the machine.
"""

import errno
import os
import signal
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

from imex_dra.base.errors import Misconfigured, Unavailable
from imex_dra.sandbox.racks import MAX_CLUSTERS

_PREFIX = "\0imex-dra"


class Hold:
    def __init__(self, name: str) -> None:
        self.name = name
        self._sockets: list[socket.socket] = []
        taken = _take(_address(name))
        if taken is None:
            raise taken_already(name)
        self._sockets.append(taken)
        self.number = self._first_number()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """For a child that shares in the hold."""
        return tuple(held.fileno() for held in self._sockets)

    def release(self) -> None:
        for held in self._sockets:
            held.close()

    def _first_number(self) -> int:
        for number in range(MAX_CLUSTERS):
            if taken := _take(f"{_PREFIX}/number/{number}"):
                self._sockets.append(taken)
                return number
        self.release()
        raise Misconfigured(f"{MAX_CLUSTERS} clusters run on this machine, which is all there are addresses for")


def taken_already(name: str) -> Misconfigured:
    return Misconfigured(
        f"a cluster {name} runs already (pid {holder(name) or 'unknown'}): `imex down --name {name}` ends it, or"
        " give this one another --name"
    )


def is_held(name: str) -> bool:
    """Looks at the kernel's list: to connect would fill a queue, to bind would keep the name from somebody."""
    wanted = _address(name).replace("\0", "@")
    lines = Path("/proc/net/unix").read_text().splitlines()
    return any(line.split(maxsplit=7)[7:] == [wanted] for line in lines)


def holder(name: str) -> int | None:
    """The process that took the name; None if nobody did."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(0)
        try:
            line.connect(_address(name))
        except OSError:
            return None
        pid, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)


def free(name: str, within: float) -> bool:
    """Waits that long at most for the end of whoever has the name."""
    deadline = time.monotonic() + within
    while is_held(name):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def end(name: str, *, within: float = 60) -> None:
    """Asks the holder to end, insists after a while, and returns when nothing is left of it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if (pid := holder(name)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if free(name, within):
            return
    raise Unavailable(f"the cluster {name} was killed, but something still holds its name after {within:.0f} s")


def _take(address: str) -> socket.socket | None:
    fresh = socket.socket(socket.AF_UNIX)
    try:
        fresh.bind(address)
    except OSError as error:
        fresh.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    fresh.listen(1024)
    return fresh


def _address(name: str) -> str:
    return f"{_PREFIX}/{os.geteuid()}/{name}"
