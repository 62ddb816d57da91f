"""The directory that stands for the NVLink switch: one file for each piece of memory that can be exported.

Only daemons open these files, by random names; processes get descriptors. Memory that is gone is first unlinked,
then truncated: a mapping of it faults, a descriptor of it shows no name, and neither can ever be made good again,
whatever its holder writes. A daemon locks a file of its own while it lives, so that others can tell a daemon
that is dead from one that they can't reach.
"""

import fcntl
import os
import re
import stat
from contextlib import suppress

from imex_dra.softimex.errors import CudaError

VARIABLE = "IMEX_FABRIC_DIR"
_NAME = re.compile(r"([0-9a-f]{16})-[0-9a-f]{32}")
_UNIT = 64 * 1024


class Fabric:
    """`node` is random, and stays the same for a node as long as its root does."""

    def __init__(self, directory: str, node: str, instance: str) -> None:
        self._directory = directory
        self._node = node
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._sweep()
        self._life = os.open(self._life_of(node, instance), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._life, fcntl.LOCK_EX)

    def create(self, length: int) -> tuple[str, int]:
        """A new file of zeros, its name, and a descriptor of it that the caller closes."""
        name = f"{self._node}-{os.urandom(16).hex()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        free, _ = self.free_bytes()
        if length > free:
            raise CudaError(CudaError.OUT_OF_MEMORY, f"{length} bytes of memory asked for, {free} are free")
        descriptor = os.open(self._path(name), flags, 0o600)
        try:
            os.truncate(descriptor, -(-length // _UNIT) * _UNIT)
        except OSError as error:
            os.close(descriptor)
            self.bury(name)
            raise CudaError(CudaError.OUT_OF_MEMORY, f"no {length} bytes: {error.strerror}") from error
        return name, descriptor

    def open(self, name: str, length: int) -> int:
        """A descriptor of memory that another daemon granted us."""
        try:
            if not _NAME.fullmatch(name):
                raise FileNotFoundError(name)
            descriptor = os.open(self._path(name), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            raise _gone() from None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink == 0 or status.st_size < length:
            os.close(descriptor)
            raise _gone()
        return descriptor

    def bury(self, name: str) -> None:
        """The memory is gone; to bury it twice is fine."""
        try:
            descriptor = os.open(self._path(name), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return
        try:
            _unlink(self._path(name))
            os.truncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def bury_if_orphaned(self, name: str, instance: str) -> None:
        """Bury the memory of another daemon only if that instance is dead, not merely out of reach."""
        match = _NAME.fullmatch(name)
        if match and not _is_locked(self._life_of(match[1], instance)):
            self.bury(name)

    def free_bytes(self) -> tuple[int, int]:
        """How much memory can still be allocated, and how much there is."""
        space = os.statvfs(self._directory)
        return space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize

    def close(self) -> None:
        self._sweep()
        os.close(self._life)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _life_of(self, node: str, instance: str) -> str:
        return self._path(f"{node}.{instance}")

    def _sweep(self) -> None:
        """Whatever this node left behind belongs to nobody: there is one daemon per node."""
        for name in os.listdir(self._directory):
            if name.startswith(f"{self._node}-"):
                self.bury(name)
            elif name.startswith(f"{self._node}."):
                _unlink(self._path(name))


def _is_locked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _gone() -> CudaError:
    return CudaError(
        CudaError.INVALID_HANDLE,
        f"the memory was freed just now, or the daemons of the two nodes have different {VARIABLE}",
    )


def node_id(run: str) -> str:
    """Random, kept in the node root."""
    path = os.path.join(run, "fabric-id")
    try:
        with open(path, errors="replace") as file:
            known = file.read().strip()
    except OSError:
        known = ""
    if not re.fullmatch("[0-9a-f]{16}", known):
        known = os.urandom(8).hex()
        with open(path, "w") as file:
            file.write(f"{known}\n")
    return known
