"""A process's connection to its node's daemon: one request, one reply, and news of lost memory in between."""

import select
import socket
import threading
from pathlib import Path
from typing import Any

from imex_dra.softimex import descriptors
from imex_dra.softimex.errors import CudaError, Malformed
from imex_dra.softimex.frames import Decoder, Message, encode

ANSWER_SECONDS = 30.0
CHUNK = 65536


class Connection:
    def __init__(self, path: Path) -> None:
        self.lost: dict[int, str] = {}
        """Imports that are gone, by number, and why."""
        self._lock = threading.RLock()
        self._decoder = Decoder()
        self._replies: list[Message] = []
        self._descriptor: int | None = None
        self._broken = ""
        self._sock = socket.socket(socket.AF_UNIX)
        try:
            self._sock.connect(str(path))
            self._sock.setblocking(False)
        except OSError as error:
            self._sock.close()
            raise _unsupported(f"no IMEX daemon answers at {path}: {error.strerror}. Is it READY?") from error

    def call(self, request: Message, descriptor: int | None = None) -> dict[str, Any]:
        reply, memory = self._exchange(request, descriptor)
        descriptors.close(memory)
        return reply

    def call_for_memory(self, request: Message) -> tuple[dict[str, Any], int]:
        """The reply, and the descriptor that came with it, which is the caller's."""
        reply, memory = self._exchange(request, None)
        if memory is None:
            raise _unsupported("the IMEX daemon sent no memory with its answer")
        return reply, memory

    def trouble(self) -> str:
        """Read what the daemon has told us meanwhile; say what is wrong with it, if anything is."""
        with self._lock:
            while not self._broken and self._receive():
                continue
            return self._broken

    def close(self) -> None:
        with self._lock:
            self._broken = self._broken or "the channel is closed"
            self._sock.close()

    def _exchange(self, request: Message, descriptor: int | None) -> tuple[dict[str, Any], int | None]:
        with self._lock:
            self._require_connection()
            try:
                self._send(encode(request), descriptor)
                while not self._replies and not self._broken:
                    self._wait()
                    self._receive()
            except OSError as error:
                self._broken = f"the IMEX daemon of this node does not answer: {error}"
            self._require_connection()
            memory, self._descriptor = self._descriptor, None
            reply = self._replies.pop(0)
        if "error" in reply:
            descriptors.close(memory)
            raise CudaError(reply["error"]["code"], reply["error"]["why"])
        return reply, memory

    def _require_connection(self) -> None:
        if self._broken and not self._replies:
            raise CudaError(CudaError.INVALID_HANDLE, self._broken)

    def _send(self, frame: bytes, descriptor: int | None) -> None:
        if descriptor is None:
            self._sock.sendall(frame)
        else:
            socket.send_fds(self._sock, [frame], [descriptor])

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        if not poll.poll(ANSWER_SECONDS * 1000):
            raise TimeoutError(f"no answer within {ANSWER_SECONDS:g} s")

    def _receive(self) -> bool:
        """Take in what has arrived; False if there is no more for now."""
        try:
            data, descriptor = descriptors.receive(self._sock, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data, descriptor = b"", None
        if descriptor is not None:
            descriptors.close(self._descriptor)
            self._descriptor = descriptor
        if not data:
            self._broken = "the IMEX daemon of this node has ended, and with it all exported and imported memory"
            return False
        self._digest(data)
        return True

    def _digest(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._sort(message)
        except Malformed as error:
            self._broken = f"the IMEX daemon of this node sent nonsense: {error}"

    def _sort(self, message: Message) -> None:
        if "lost" in message:
            self.lost[message["lost"]] = str(message["why"])
        else:
            self._replies.append(message)


def _unsupported(why: str) -> CudaError:
    return CudaError(CudaError.NOT_SUPPORTED, why)
