"""Fabric memory for Python programs on simulated nodes, with the operations of the CUDA driver API.

    with memory.open_channel() as channel:              # the IMEX channel of the container
        mine = channel.allocate(1 << 20, gpu=0)         # cuMemCreate with a fabric handle type, and cuMemMap
        handle = mine.export()                          # 64 bytes; cuMemExportToShareableHandle
        theirs = channel.import_handle(other_handle)    # cuMemImportFromShareableHandle, and cuMemMap
        theirs.write(0, b"hello")
        theirs.array("float32")[:] = 1                  # a numpy array over the mapping, without a copy

The daemons make every check. Library calls first test whether the memory still exists and raise `CudaError` if
not. A view or an array that is still in use then faults (SIGBUS), as it would on a GPU. Python cannot catch
that, so the library enables `faulthandler` to print the line. No call ever returns bytes of memory that is
gone.
"""

import contextlib
import importlib
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

from imex_sandbox.softimex.daemonclient import DaemonClient
from imex_sandbox.softimex.errors import CudaError
from imex_sandbox.softimex.handles import HANDLE_SIZE

__all__ = ["HANDLE_SIZE", "Allocation", "Buffer", "Channel", "CudaError", "Import", "open_channel"]

CHANNEL_FILE = "/run/imex/channel"
CHANNEL_VARIABLE = "IMEX_CHANNEL_FILE"
SOCKET_VARIABLE = "IMEX_CLIENT_SOCKET"


def open_channel(channel: str | Path | None = None, socket: str | Path | None = None) -> "Channel":
    """Open an IMEX channel; by default the channel and the daemon socket of the container."""
    file = Path(channel or os.environ.get(CHANNEL_VARIABLE) or CHANNEL_FILE)
    path = socket or os.environ.get(SOCKET_VARIABLE)
    if not path:
        raise CudaError(
            CudaError.NOT_PERMITTED, f"{SOCKET_VARIABLE} is not set: does this container have an IMEX channel?"
        )
    return Channel(file, DaemonClient(Path(path)))


class Channel:
    """A process's use of one IMEX channel. Closing it ends all memory that it allocated or imported."""

    def __init__(self, file: Path, client: DaemonClient) -> None:
        self._client = client
        try:
            reply = self._open(file)
        except BaseException:
            client.close()
            raise
        self.number: int = reply["channel"]
        self.node_index: int = reply["index"]
        self.gpus: int = reply["gpus"]

    def allocate(self, size: int, gpu: int = 0) -> "Allocation":
        if size < 1 or not 0 <= gpu < 256:
            raise CudaError(CudaError.INVALID_VALUE, f"cannot allocate {size} bytes on GPU {gpu}")
        reply, descriptor = self._client.call_for_memory({"call": "allocate", "gpu": gpu, "size": size})
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.close(descriptor)
            self._client.call({"call": "free", "allocation": reply["allocation"]})
            raise CudaError(CudaError.OUT_OF_MEMORY, f"cannot allocate {size} bytes: {error.strerror}") from error
        return Allocation(self._client, reply["allocation"], size, descriptor)

    def import_handle(self, handle: bytes) -> "Import":
        """Import memory that another process exported."""
        if len(handle) != HANDLE_SIZE:
            raise CudaError(
                CudaError.INVALID_HANDLE, f"a fabric handle has {HANDLE_SIZE} bytes, this one has {len(handle)}"
            )
        reply, descriptor = self._client.call_for_memory({"call": "import", "handle": handle.hex()})
        return Import(self._client, reply["import"], reply["length"], descriptor)

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes, as cuMemGetInfo."""
        reply = self._client.call({"call": "memory"})
        return reply["free"], reply["total"]

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, file: Path) -> dict[str, Any]:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise CudaError(
                CudaError.NOT_PERMITTED,
                f"cannot open the IMEX channel {file}: {error.strerror}. Does this container reference the claim?",
            ) from error
        try:
            return self._client.call({"call": "open"}, descriptor)
        finally:
            os.close(descriptor)


class Buffer:
    """Mapped memory: an allocation or an import."""

    def __init__(self, client: DaemonClient, number: int, size: int, descriptor: int) -> None:
        self.size = size
        self._client = client
        self._number = number
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)
        try:
            self._mapping = mmap.mmap(descriptor, size)
        except (OSError, ValueError) as error:
            self._close()
            raise CudaError(CudaError.OUT_OF_MEMORY, f"cannot map {size} bytes: {error}") from error

    def read(self, offset: int, size: int) -> bytes:
        self._require_range(offset, size)
        data = os.pread(self._descriptor, size, offset)
        self.check()  # after the read: a check before it would miss memory that is destroyed in between
        return data

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._require_range(offset, len(data))
        self.check()
        os.pwrite(self._descriptor, data, offset)
        self.check()

    def view(self) -> memoryview:
        """The memory itself. Access faults once the memory is gone: call `check` first."""
        self.check()
        _enable_faulthandler()
        return memoryview(self._mapping)

    def array(self, dtype: Any = "uint8") -> Any:
        """The memory itself as a numpy array; requires numpy (the extra `memory`)."""
        return importlib.import_module("numpy").frombuffer(self.view(), dtype=dtype)

    def check(self) -> None:
        """Raise `CudaError` if the memory is gone."""
        if reason := self._lost():
            raise CudaError(CudaError.INVALID_HANDLE, reason)
        status = os.fstat(self._descriptor)
        if status.st_nlink == 0 or status.st_size < self.size:
            raise CudaError(CudaError.INVALID_HANDLE, "the memory is gone: its exporter freed it or ended")

    def _lost(self) -> str:
        return self._client.failure() if self._close.alive else "this process has released the memory"

    def _unmap(self) -> None:
        """Close the descriptor. Views and arrays that still exist keep the mapping alive."""
        self._close()
        with contextlib.suppress(BufferError):
            self._mapping.close()

    def _require_range(self, offset: int, size: int) -> None:
        if not self._close.alive:
            self.check()
        if offset < 0 or offset + size > self.size:
            raise CudaError(
                CudaError.INVALID_VALUE,
                f"bytes {offset} to {offset + size} exceed the {self.size} bytes of memory",
            )


class Allocation(Buffer):
    def export(self) -> bytes:
        """A fabric handle of the memory."""
        return bytes.fromhex(self._client.call({"call": "export", "allocation": self._number})["handle"])

    def free(self) -> None:
        """Free the memory. All importers lose it."""
        self._unmap()
        self._client.call({"call": "free", "allocation": self._number})


class Import(Buffer):
    def release(self) -> None:
        self._unmap()
        self._client.call({"call": "release", "import": self._number})

    def _lost(self) -> str:
        return super()._lost() or self._client.lost_imports.get(self._number, "")


def _enable_faulthandler() -> None:
    import faulthandler

    try:
        if not faulthandler.is_enabled():
            faulthandler.enable()
    except (OSError, ValueError, AttributeError, RuntimeError):
        return  # stderr may be closed or replaced by an object without a descriptor
