"""What CUDA programs do with fabric memory, for Python programs on simulated nodes.

    with memory.open_channel() as channel:              # the IMEX channel that the container was given
        mine = channel.allocate(1 << 20, gpu=0)         # cuMemCreate with a fabric handle type, and cuMemMap
        handle = mine.export()                          # 64 bytes, for anybody; cuMemExportToShareableHandle
        theirs = channel.attach(other_handle)           # cuMemImportFromShareableHandle, and cuMemMap
        theirs.write(0, b"hello")
        theirs.array("float32")[:] = 1                  # numpy, over the mapping, without a copy

Every check is made by the daemons; the library only asks. Its own calls find out first whether the memory still
exists and raise `CudaError` if not. A view or an array that is still held then faults (SIGBUS), as it would on a
GPU: Python can't catch that, so `faulthandler` is switched on to name the line. No call ever returns bytes of
memory that is gone.
"""

import contextlib
import importlib
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

from imex_dra.softimex.client import Connection
from imex_dra.softimex.errors import CudaError
from imex_dra.softimex.handles import SIZE as HANDLE_SIZE

__all__ = ["HANDLE_SIZE", "Allocation", "Buffer", "Channel", "CudaError", "Import", "open_channel"]

CHANNEL_FILE = "/run/imex/channel"
CHANNEL_VARIABLE = "IMEX_CHANNEL_FILE"
SOCKET_VARIABLE = "IMEX_CLIENT_SOCKET"


def open_channel(channel: str | Path | None = None, socket: str | Path | None = None) -> "Channel":
    """By default the channel and the daemon that the container was given."""
    file = Path(channel or os.environ.get(CHANNEL_VARIABLE) or CHANNEL_FILE)
    path = socket or os.environ.get(SOCKET_VARIABLE)
    if not path:
        raise CudaError(
            CudaError.NOT_SUPPORTED, f"{SOCKET_VARIABLE} is not set: was this container given an IMEX channel?"
        )
    return Channel(file, Connection(Path(path)))


class Channel:
    """A process's subscription to one IMEX channel. All its memory ends with it."""

    def __init__(self, file: Path, connection: Connection) -> None:
        self._connection = connection
        try:
            answer = self._introduce(file)
        except BaseException:
            connection.close()
            raise
        self.number: int = answer["channel"]
        self.slot: int = answer["slot"]
        self.gpus: int = answer["gpus"]

    def allocate(self, size: int, gpu: int = 0) -> "Allocation":
        if size < 1 or not 0 <= gpu < 256:
            raise CudaError(CudaError.INVALID_VALUE, f"{size} bytes on GPU {gpu} can't be allocated")
        answer, descriptor = self._connection.call_for_memory({"call": "allocate", "gpu": gpu, "size": size})
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.close(descriptor)
            self._connection.call({"call": "free", "allocation": answer["allocation"]})
            raise CudaError(CudaError.OUT_OF_MEMORY, f"no {size} bytes: {error.strerror}") from error
        return Allocation(self._connection, answer["allocation"], size, descriptor)

    def attach(self, handle: bytes) -> "Import":
        """Import memory that another process exported."""
        if len(handle) != HANDLE_SIZE:
            raise CudaError(CudaError.INVALID_HANDLE, f"a handle has {HANDLE_SIZE} bytes, this has {len(handle)}")
        answer, descriptor = self._connection.call_for_memory({"call": "import", "handle": handle.hex()})
        return Import(self._connection, answer["import"], answer["length"], descriptor)

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes, as cuMemGetInfo."""
        answer = self._connection.call({"call": "memory"})
        return answer["free"], answer["total"]

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _introduce(self, file: Path) -> dict[str, Any]:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise CudaError(
                CudaError.NOT_PERMITTED,
                f"can't open the IMEX channel {file}: {error.strerror}. Does this container list the claim?",
            ) from error
        try:
            return self._connection.call({"call": "open"}, descriptor)
        finally:
            os.close(descriptor)


class Buffer:
    """Mapped memory, one's own or imported."""

    def __init__(self, connection: Connection, number: int, size: int, descriptor: int) -> None:
        self.size = size
        self._connection = connection
        self._number = number
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)
        try:
            self._mapping = mmap.mmap(descriptor, size)
        except (OSError, ValueError) as error:
            self._close()
            raise CudaError(CudaError.OUT_OF_MEMORY, f"can't map {size} bytes: {error}") from error

    def read(self, offset: int, size: int) -> bytes:
        self._require(offset, size)
        data = os.pread(self._descriptor, size, offset)
        self.check()  # afterwards: what was there before may be gone by now
        return data

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._require(offset, len(data))
        self.check()
        os.pwrite(self._descriptor, data, offset)
        self.check()

    def view(self) -> memoryview:
        """The memory itself. It faults when the memory is gone: `check` first."""
        self.check()
        _name_faults()
        return memoryview(self._mapping)

    def array(self, dtype: Any = "uint8") -> Any:
        """The memory itself as a numpy array; numpy comes with the extra `memory`."""
        return importlib.import_module("numpy").frombuffer(self.view(), dtype=dtype)

    def check(self) -> None:
        """Raise if the memory is gone."""
        if why := self._lost():
            raise CudaError(CudaError.INVALID_HANDLE, why)
        status = os.fstat(self._descriptor)
        if status.st_nlink == 0 or status.st_size < self.size:
            raise CudaError(CudaError.INVALID_HANDLE, "the memory is gone: its exporter freed it or ended")

    def _lost(self) -> str:
        return self._connection.trouble() if self._close.alive else "this process has given it back"

    def _unmap(self) -> None:
        """Views and arrays that are still held keep the mapping, not the right to it."""
        self._close()
        with contextlib.suppress(BufferError):
            self._mapping.close()

    def _require(self, offset: int, size: int) -> None:
        if not self._close.alive:
            self.check()
        if offset < 0 or offset + size > self.size:
            raise CudaError(
                CudaError.INVALID_VALUE, f"bytes {offset} to {offset + size} of a memory of {self.size}"
            )


class Allocation(Buffer):
    def export(self) -> bytes:
        return bytes.fromhex(self._connection.call({"call": "export", "allocation": self._number})["handle"])

    def free(self) -> None:
        """Whoever has imported it loses it."""
        self._unmap()
        self._connection.call({"call": "free", "allocation": self._number})


class Import(Buffer):
    def release(self) -> None:
        self._unmap()
        self._connection.call({"call": "release", "import": self._number})

    def _lost(self) -> str:
        return super()._lost() or self._connection.lost.get(self._number, "")


def _name_faults() -> None:
    import faulthandler

    try:
        if not faulthandler.is_enabled():
            faulthandler.enable()
    except (OSError, ValueError, AttributeError, RuntimeError):
        return
