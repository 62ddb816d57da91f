"""The lock on a cluster's name and number, and the process that removes the cluster's files.

Both locks are abstract Unix sockets. Only one process can bind such a socket, and the kernel frees it when the
last process that has it open ends, even after SIGKILL. So there are no stale lock files, and the kernel knows
the pid of the owner. Names are per user; numbers (networks 127.16, 127.17, ...) are shared by all users of the
machine.
"""

import errno
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from imex_dra.base.errors import Misconfigured, Unavailable
from imex_sandbox.racks import MAX_CLUSTERS

_PREFIX = "\0imex-dra"
_STOP_TIMEOUT = 60.0

_REMOVE = """
trap '' INT TERM HUP
cat >/dev/null
for attempt in 1 2 3 4 5 6 7 8 9 10; do
  rm -rf -- "$@" 2>/dev/null && exit
  sleep 0.2
done
"""
"""`cat` returns when `imex up` has ended. Processes that are being killed may still create files: retry."""


class ClusterLock:
    def __init__(self, name: str) -> None:
        self.name = name
        self._sockets: list[socket.socket] = []
        bound = _bind(_address(name))
        if bound is None:
            raise already_running(name)
        self._sockets.append(bound)
        self.number = self._first_free_number()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """For a child process that shares the lock."""
        return tuple(bound.fileno() for bound in self._sockets)

    def release(self) -> None:
        for bound in self._sockets:
            bound.close()

    def _first_free_number(self) -> int:
        for number in range(MAX_CLUSTERS):
            if bound := _bind(f"{_PREFIX}/number/{number}"):
                self._sockets.append(bound)
                return number
        self.release()
        raise Misconfigured(
            f"{MAX_CLUSTERS} clusters run on this machine, and there are no addresses for more: stop one with"
            " `imex down --name NAME`"
        )


class CleanupProcess:
    """Removes files when this process ends, however it ends.

    It is a shell that waits for the end of a pipe whose write end only this process has open. It shares the lock
    until the files are gone, so that the next cluster of this name does not lose its own.
    """

    def __init__(self, remove: Sequence[Path], lock: ClusterLock) -> None:
        self._child = subprocess.Popen(
            ["sh", "-c", _REMOVE, "imex-cleanup", *map(str, remove)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=lock.descriptors,
            start_new_session=True,
        )

    def run(self) -> None:
        """Remove the files now, and wait until they are gone."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=60)


def already_running(name: str) -> Misconfigured:
    return Misconfigured(
        f"cluster {name} is already running (pid {lock_owner(name) or 'unknown'}): stop it with `imex down --name"
        f" {name}`, or choose another --name"
    )


def is_locked(name: str) -> bool:
    # Reads the kernel's list: connecting would fill the socket's queue, and binding would take the name from
    # another process for a moment.
    wanted = _address(name).replace("\0", "@")
    lines = Path("/proc/net/unix").read_text().splitlines()
    return any(line.split(maxsplit=7)[7:] == [wanted] for line in lines)


def lock_owner(name: str) -> int | None:
    """The pid of the process that locked the name; None if it is not locked."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0)
        try:
            connection.connect(_address(name))
        except OSError:
            return None
        pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)


def wait_until_unlocked(name: str, within: float) -> bool:
    """False if the name is still locked after `within` seconds."""
    deadline = time.monotonic() + within
    while is_locked(name):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def stop_cluster(name: str) -> None:
    """Send SIGTERM to the owner of the lock, then SIGKILL, and return when the lock is free."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if (pid := lock_owner(name)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if wait_until_unlocked(name, _STOP_TIMEOUT):
            return
    raise Unavailable(
        f"cluster {name} was killed, but its name is still locked after {_STOP_TIMEOUT:.0f} s: look for its"
        f" processes with `pgrep -fa imex-{os.geteuid()}/{name}`"
    )


def _bind(address: str) -> socket.socket | None:
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    bound.listen(1024)
    return bound


def _address(name: str) -> str:
    return f"{_PREFIX}/{os.geteuid()}/{name}"
