"""The directory that represents the NVLink fabric: one file per allocation.

Only daemons open these files, by random names. Processes get descriptors. Memory is destroyed by unlinking its
file and then truncating it. From then on a mapping faults and every descriptor shows a link count of 0, which no
process can undo.
"""

import fcntl
import os
import re
import stat
from contextlib import suppress

from imex_sandbox.softimex.errors import CudaError

FABRIC_DIR_VARIABLE = "IMEX_FABRIC_DIR"
_NAME = re.compile(r"([0-9a-f]{16})-[0-9a-f]{32}")
_GRANULARITY = 64 * 1024


class Fabric:
    """`fabric_id` identifies the node; it survives restarts of the daemon."""

    def __init__(self, directory: str, fabric_id: str, instance: str) -> None:
        self._directory = directory
        self._fabric_id = fabric_id
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._remove_files()
        # Locked until this daemon exits, so that others can tell a dead daemon from an unreachable one.
        lock_path = self._lock_path(fabric_id, instance)
        self._lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def create(self, length: int) -> tuple[str, int]:
        """Create a file of zeros. Returns its name and a descriptor that the caller closes."""
        name = f"{self._fabric_id}-{os.urandom(16).hex()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        free, _ = self.memory_info()
        if length > free:
            raise CudaError(CudaError.OUT_OF_MEMORY, f"{length} bytes of memory requested, {free} bytes are free")
        descriptor = os.open(self._path(name), flags, 0o600)
        try:
            os.truncate(descriptor, -(-length // _GRANULARITY) * _GRANULARITY)
        except OSError as error:
            os.close(descriptor)
            self.destroy(name)
            raise CudaError(
                CudaError.OUT_OF_MEMORY, f"cannot allocate {length} bytes: {error.strerror}"
            ) from error
        return name, descriptor

    def open(self, name: str, length: int) -> int:
        """Open memory that another daemon granted."""
        try:
            if not _NAME.fullmatch(name):
                raise FileNotFoundError(name)
            descriptor = os.open(self._path(name), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            raise _not_found() from None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink == 0 or status.st_size < length:
            os.close(descriptor)
            raise _not_found()
        return descriptor

    def destroy(self, name: str) -> None:
        """Destroy memory; does nothing if it is already destroyed."""
        try:
            descriptor = os.open(self._path(name), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return
        try:
            # Unlink first: another holder may extend the truncated file, and then only the link count shows a
            # reader that the memory is gone.
            _unlink(self._path(name))
            os.truncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def destroy_if_orphaned(self, name: str, instance: str) -> None:
        """Destroy the memory of another daemon if that instance is dead, not just unreachable."""
        match = _NAME.fullmatch(name)
        if match and not _is_locked(self._lock_path(match[1], instance)):
            self.destroy(name)

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes."""
        space = os.statvfs(self._directory)
        return space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize

    def close(self) -> None:
        self._remove_files()
        os.close(self._lock)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _lock_path(self, fabric_id: str, instance: str) -> str:
        return self._path(f"{fabric_id}.{instance}")

    def _remove_files(self) -> None:
        """Destroy all memory of this node and remove its lock files. There is only one daemon per node."""
        for name in os.listdir(self._directory):
            if name.startswith(f"{self._fabric_id}-"):
                self.destroy(name)
            elif name.startswith(f"{self._fabric_id}."):
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


def _not_found() -> CudaError:
    return CudaError(
        CudaError.INVALID_HANDLE,
        f"the memory has just been freed, or the daemons of the two nodes have different {FABRIC_DIR_VARIABLE}",
    )
