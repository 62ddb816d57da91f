"""Messages on a byte stream: a length (u32, big-endian) and that many bytes of a JSON object.

The same frames travel between daemons, to the ctl and to the memory library. A frame holds 64 KiB at most, so
a reader never needs more memory than that for one; what breaks the rules raises `Malformed`, whatever the
bytes are.
"""

import json
from typing import Any

from imex_dra.softimex.errors import Malformed

LIMIT = 64 * 1024
PREFIX = 4

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > LIMIT:
        raise Malformed(f"a message of {len(body)} bytes does not fit in a frame of {LIMIT}")
    return len(body).to_bytes(PREFIX) + body


class Decoder:
    """Collects bytes until they are messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def partial(self) -> bool:
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages = []
        while (end := self._end()) is not None:
            messages.append(decode(bytes(self._buffer[PREFIX:end])))
            del self._buffer[:end]
        return messages

    def _end(self) -> int | None:
        """Where the first frame ends, if all of it is here."""
        if len(self._buffer) < PREFIX:
            return None
        length = int.from_bytes(self._buffer[:PREFIX])
        if length > LIMIT:
            raise Malformed(f"a frame of {length} bytes; at most {LIMIT} are allowed")
        return PREFIX + length if len(self._buffer) >= PREFIX + length else None


def decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed("a frame that holds no JSON") from None
    if not isinstance(message, dict):
        raise Malformed("a frame that holds no JSON object")
    return message


def text(message: Message, key: str, most: int = 256) -> str:
    value = message.get(key)
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise Malformed(f"{key!r} must be a printable string of at most {most} characters")
    return value


def number(message: Message, key: str, low: int, high: int) -> int:
    value = message.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Malformed(f"{key!r} must be a whole number from {low} to {high}")
    return value
