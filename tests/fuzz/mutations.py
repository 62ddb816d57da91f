"""Turns arbitrary bytes into messages: a valid message of which a few tokens are replaced by hostile ones.

A fuzzer that mutates JSON byte by byte hardly gets past the parser. Here the bytes are read as instructions: which
message, which of its tokens, and what to put there.
"""

import re

VALUES: tuple[bytes, ...] = (
    *(b"null", b"true", b"0", b"-1", b"1.5", b"1e999", b"9" * 400, b"9223372036854775807", b"9223372036854775808"),
    *(b'""', b'"x"', rb'"\ud800"', rb'"x\udfffy"', b'"\xff"', rb'"\u0000"', b'"' + b"x" * 3000 + b'"', b'"1"'),
    *(b"[]", b"{}", b"[null]", b"[{}]", b'{"":0}', rb'{"\ud800":1}', b'{"a":1,"a":2}', b'{"metadata":7}'),
    *(b"[" * 1200 + b"]" * 1200, b'{"a":' * 1200 + b"1" + b"}" * 1200, b"[" * 60 + b"]" * 60),
    *(b"", b"[", b"]", b"}", b",", b'"', b"\\", b"nul"),
)

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-\d.eE+]+|true|false|null|[\[\]{}:,]')


def mutated(messages: tuple[bytes, ...], data: bytes) -> bytes:
    """The first byte chooses the message, or raw bytes; then each pair of bytes replaces a token."""
    if not data or data[0] % (len(messages) + 1) == len(messages):
        return data[1:]
    message = messages[data[0] % (len(messages) + 1)]
    tokens = list(_TOKEN.finditer(message))
    replacements = {data[at] % len(tokens): data[at + 1] for at in range(1, min(len(data) - 1, 16), 2)}
    for position in sorted(replacements, reverse=True):
        token, value = tokens[position], VALUES[replacements[position] % len(VALUES)]
        message = message[: token.start()] + value + message[token.end() :]
    return message
