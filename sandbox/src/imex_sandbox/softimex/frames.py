"""Messages on a byte stream: a length prefix (u32, big-endian) followed by a JSON object of that many bytes.

Daemons, `nvidia-imex-ctl` and the memory library all use these frames. On Unix sockets a frame may carry one
file descriptor. A frame holds at most 64 KiB, which bounds the memory that a peer can make the reader allocate.
Input that violates the format raises `Malformed`, whatever the bytes are.
"""

import array
import json
import os
import socket
from typing import Any

from imex_sandbox.softimex.errors import Malformed

LIMIT = 64 * 1024
PREFIX = 4
_DESCRIPTOR_SIZE = array.array("i").itemsize

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > LIMIT:
        raise Malformed(f"a message of {len(body)} bytes exceeds the frame limit of {LIMIT} bytes")
    return len(body).to_bytes(PREFIX) + body


class Decoder:
    """Buffers bytes and returns the messages that are complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def partial(self) -> bool:
        """Whether the buffer holds an incomplete frame."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages = []
        while (end := self._end()) is not None:
            messages.append(decode(bytes(self._buffer[PREFIX:end])))
            del self._buffer[:end]
        return messages

    def _end(self) -> int | None:
        """Where the first frame ends, or None while it is incomplete."""
        if len(self._buffer) < PREFIX:
            return None
        length = int.from_bytes(self._buffer[:PREFIX])
        # Checked before the body arrives, so that an announced length never makes the buffer grow.
        if length > LIMIT:
            raise Malformed(f"a frame of {length} bytes exceeds the limit of {LIMIT} bytes")
        return PREFIX + length if len(self._buffer) >= PREFIX + length else None


def decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed("a frame does not contain JSON") from None
    if not isinstance(message, dict):
        raise Malformed("a frame does not contain a JSON object")
    return message


def text(message: Message, key: str, limit: int = 256) -> str:
    """The string field `key`, validated."""
    value = message.get(key)
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise Malformed(f"{key!r} must be a printable string of at most {limit} characters")
    return value


def number(message: Message, key: str, low: int, high: int) -> int:
    """The integer field `key`, validated."""
    value = message.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Malformed(f"{key!r} must be an integer from {low} to {high}")
    return value


def receive_with_descriptor(sock: socket.socket, size: int) -> tuple[bytes, int | None]:
    """Receive up to `size` bytes and at most one descriptor, which the caller closes."""
    # The buffer has room for one descriptor. The kernel closes the descriptors that do not fit.
    data, ancillary, _, _ = sock.recvmsg(size, socket.CMSG_LEN(_DESCRIPTOR_SIZE), socket.MSG_CMSG_CLOEXEC)
    received = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_SIZE])
    for surplus in received[1:]:
        os.close(surplus)
    return data, received[0] if received else None


def send_with_descriptor(sock: socket.socket, data: bytes, descriptor: int) -> int:
    return socket.send_fds(sock, [data], [descriptor])


def close_descriptor(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
