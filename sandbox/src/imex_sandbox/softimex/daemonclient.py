"""The memory library's connection to the daemon: one reply per request, and notifications of lost imports."""

import select
import socket
import threading
from pathlib import Path
from typing import Any

from imex_sandbox.softimex.errors import CudaError, Malformed
from imex_sandbox.softimex.frames import (
    Decoder,
    Message,
    close_descriptor,
    encode,
    receive_with_descriptor,
    send_with_descriptor,
)

REPLY_SECONDS = 30.0
CHUNK = 65536


class DaemonClient:
    def __init__(self, path: Path) -> None:
        self.lost_imports: dict[int, str] = {}
        """The reason for each lost import, by number."""
        self._lock = threading.RLock()
        self._decoder = Decoder()
        self._replies: list[Message] = []
        self._descriptor: int | None = None
        self._failure = ""
        self._sock = socket.socket(socket.AF_UNIX)
        try:
            self._sock.connect(str(path))
            self._sock.setblocking(False)
        except OSError as error:
            self._sock.close()
            raise _not_supported(f"no IMEX daemon answers at {path}: {error.strerror}. Is it READY?") from error

    def call(self, request: Message, descriptor: int | None = None) -> dict[str, Any]:
        reply, received = self._exchange(request, descriptor)
        close_descriptor(received)
        return reply

    def call_for_memory(self, request: Message) -> tuple[dict[str, Any], int]:
        """The reply and its descriptor, which the caller closes."""
        reply, received = self._exchange(request, None)
        if received is None:
            raise _not_supported("the IMEX daemon sent no memory with its reply")
        return reply, received

    def failure(self) -> str:
        """Process pending notifications; returns why the connection failed, or an empty string."""
        with self._lock:
            while not self._failure and self._receive():
                continue
            return self._failure

    def close(self) -> None:
        with self._lock:
            self._failure = self._failure or "the channel is closed"
            self._sock.close()

    def _exchange(self, request: Message, descriptor: int | None) -> tuple[dict[str, Any], int | None]:
        with self._lock:
            self._require_connection()
            try:
                self._send(encode(request), descriptor)
                while not self._replies and not self._failure:
                    self._wait()
                    self._receive()
            except OSError as error:
                self._failure = f"the IMEX daemon of this node does not reply: {error}"
            self._require_connection()
            received, self._descriptor = self._descriptor, None
            reply = self._replies.pop(0)
        if "error" in reply:
            close_descriptor(received)
            raise CudaError(reply["error"]["code"], reply["error"]["reason"])
        return reply, received

    def _require_connection(self) -> None:
        if self._failure and not self._replies:
            raise CudaError(CudaError.INVALID_HANDLE, self._failure)

    def _send(self, frame: bytes, descriptor: int | None) -> None:
        if descriptor is None:
            self._sock.sendall(frame)
        else:
            send_with_descriptor(self._sock, frame, descriptor)

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        if not poll.poll(REPLY_SECONDS * 1000):
            raise TimeoutError(f"no reply within {REPLY_SECONDS:g} s")

    def _receive(self) -> bool:
        """Process the bytes that have arrived; False if there are none."""
        try:
            data, descriptor = receive_with_descriptor(self._sock, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data, descriptor = b"", None
        if descriptor is not None:
            close_descriptor(self._descriptor)
            self._descriptor = descriptor
        if not data:
            self._failure = "the IMEX daemon of this node has ended, and with it all exported and imported memory"
            return False
        self._decode(data)
        return True

    def _decode(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._dispatch(message)
        except Malformed as error:
            self._failure = f"the IMEX daemon of this node sent an invalid message: {error}"

    def _dispatch(self, message: Message) -> None:
        if "lost" in message:
            self.lost_imports[message["lost"]] = str(message["reason"])
        else:
            self._replies.append(message)


def _not_supported(reason: str) -> CudaError:
    return CudaError(CudaError.NOT_SUPPORTED, reason)
