"""From any bytes to a visit: half of a fuzzer's luck is to speak the language.

The bytes are a little program. Some of its words are sent as they are, some in a frame, and most choose messages
that the protocols know, as they should be or with values that don't fit.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from imex_dra.softimex.frames import LIMIT

KEYS = (
    *("hello", "welcome", "accepted", "slot", "instance", "version", "map", "ping", "pong", "ask", "answer"),
    *("import", "handle", "channel", "partition", "release", "bye", "reload", "file", "length", "code", "why"),
    *("lost", "query", "call", "open", "allocate", "export", "free", "memory", "gpu", "size", "allocation"),
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
        {"slot": 1, "instance": "11" * 8, "version": "580.1", "map": "map"},
    ),
)

HANDLE = "@" * 128
"""Stands for a handle that is good; whoever knocks puts one in its place."""

_IDENTITY = {"slot": 1, "instance": "11" * 8, "version": "580.1", "map": "map"}
MESSAGES: tuple[dict[str, Any], ...] = (
    {"hello": _IDENTITY},
    {"welcome": _IDENTITY, "accepted": True},
    {"ask": 1, "handle": HANDLE, "channel": 5, "partition": "p.1"},
    {"answer": 1, "file": "ab" * 8 + "-" + "cd" * 16, "length": 4096},
    {"answer": 1, "code": 800, "why": "no"},
    {"release": 1},
    {"bye": 1},
    {"query": "state"},
    {"query": "watch"},
    {"call": "allocate", "gpu": 0, "size": 4096},
    {"call": "export", "allocation": 2},
    {"call": "free", "allocation": 2},
    {"call": "import", "handle": HANDLE},
    {"call": "release", "import": 1},
    {"call": "memory"},
)


class Visit(NamedTuple):
    honest: bool
    chunks: tuple[bytes, ...]


def compose(data: bytes) -> Visit:
    words = _Words(data)
    honest = words.next() % 2 == 0
    chunks = []
    while words:
        kind = words.next() % 8
        if kind == 0:
            chunks.append(words.take(words.next()))
        elif kind == 1:
            chunks.append(_frame(words.take(words.next())))
        elif kind == 2:
            chunks.append((words.next() * LIMIT // 128).to_bytes(4) + words.take(words.next()))
        else:
            message = _message(words) if kind < 4 else _variation(words)
            chunks.append(_frame(json.dumps(message).encode()))
    return Visit(honest, tuple(chunks))


class _Words:
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


def _message(words: _Words) -> dict[str, Any]:
    return dict(_fields(words, 1 + words.next() % 5))


def _variation(words: _Words) -> dict[str, Any]:
    """A message as it should be, or with one field that is not."""
    message = dict(MESSAGES[words.next() % len(MESSAGES)])
    change = words.next()
    if change % 4 == 0:
        keys = list(message)
        message[keys[change // 4 % len(keys)]] = VALUES[words.next() % len(VALUES)]
    return message


def _fields(words: _Words, count: int) -> Iterator[tuple[str, Any]]:
    for _ in range(count):
        yield KEYS[words.next() % len(KEYS)], VALUES[words.next() % len(VALUES)]


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body
