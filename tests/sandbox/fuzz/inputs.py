"""Structured inputs: turns arbitrary bytes into messages of the protocols, so that a fuzzer gets past the parsers.

The bytes are read as instructions. Some send raw bytes, some a frame with raw content, and most a message of the
protocols, unchanged or with invalid values.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from imex_sandbox.softimex.frames import LIMIT

KEYS = (
    *("hello", "welcome", "accepted", "index", "instance", "version", "map", "ping", "pong", "request"),
    *("response", "import", "handle", "channel", "partition", "release", "shutdown", "reload", "file"),
    *("length", "code", "reason", "lost", "failed", "query", "call", "open", "allocate", "export", "free"),
    *("memory", "gpu", "size", "allocation"),
)
VALUES: tuple[Any, ...] = (
    *(0, 1, 2, 5, -1, 255, 2**16, 2**31, 2**62, 2**64, 1.5, 1e308, True, False, None, "", "x", "\n", "\ud800"),
    *("state", "node", "watch", "open", "allocate", "export", "free", "import", "release", "memory"),
    *("00" * 8, "11" * 8, "580.1", "map", "p.1", "00" * 64, "53494d58" + "00" * 60, "x" * 300, "../../etc/passwd"),
    *(
        "ab" * 8 + "-" + "cd" * 16,
        [],
        {},
        [1],
        {"index": 1, "instance": "11" * 8, "version": "580.1", "map": "map"},
    ),
)

HANDLE = "@" * 128
"""A placeholder that is replaced with a valid handle when the input runs."""

_IDENTITY = {"index": 1, "instance": "11" * 8, "version": "580.1", "map": "map"}
MESSAGES: tuple[dict[str, Any], ...] = (
    {"hello": _IDENTITY},
    {"welcome": _IDENTITY, "accepted": True},
    {"request": 1, "handle": HANDLE, "channel": 5, "partition": "p.1"},
    {"response": 1, "file": "ab" * 8 + "-" + "cd" * 16, "length": 4096},
    {"response": 1, "code": 800, "reason": "no"},
    {"release": 1},
    {"shutdown": 1},
    {"query": "state"},
    {"query": "watch"},
    {"call": "allocate", "gpu": 0, "size": 4096},
    {"call": "export", "allocation": 2},
    {"call": "free", "allocation": 2},
    {"call": "import", "handle": HANDLE},
    {"call": "release", "import": 1},
    {"call": "memory"},
)


class Input(NamedTuple):
    handshake: bool
    """Whether the client starts with a valid handshake."""
    chunks: tuple[bytes, ...]


def parse_input(data: bytes) -> Input:
    reader = _Reader(data)
    handshake = reader.next() % 2 == 0
    chunks = []
    while reader:
        kind = reader.next() % 8
        if kind == 0:
            chunks.append(reader.take(reader.next()))
        elif kind == 1:
            chunks.append(_frame(reader.take(reader.next())))
        elif kind == 2:
            chunks.append((reader.next() * LIMIT // 128).to_bytes(4) + reader.take(reader.next()))
        else:
            message = _message(reader) if kind < 4 else _variation(reader)
            chunks.append(_frame(json.dumps(message).encode()))
    return Input(handshake, tuple(chunks))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def next(self) -> int:
        return (self.take(1) or b"\0")[0]

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += max(1, count)
        return taken


def _message(reader: _Reader) -> dict[str, Any]:
    return dict(_fields(reader, 1 + reader.next() % 5))


def _variation(reader: _Reader) -> dict[str, Any]:
    """A message of the protocols, unchanged or with one invalid field."""
    message = dict(MESSAGES[reader.next() % len(MESSAGES)])
    change = reader.next()
    if change % 4 == 0:
        keys = list(message)
        message[keys[change // 4 % len(keys)]] = VALUES[reader.next() % len(VALUES)]
    return message


def _fields(reader: _Reader, count: int) -> Iterator[tuple[str, Any]]:
    for _ in range(count):
        yield KEYS[reader.next() % len(KEYS)], VALUES[reader.next() % len(VALUES)]


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body
