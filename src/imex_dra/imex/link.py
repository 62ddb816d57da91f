"""Between the node program and the IMEX agent of one node: a unix socket, frames of JSON both ways.

The node program sends a `Membership` whenever it changes; the agent sends its `DaemonState` at once and
whenever it changes. A frame is a length (four bytes, big endian) and JSON, 64 KiB at most.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec
from msgspec import Struct

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.errors import Rejected

LONGEST = 64 * 1024
_HEADER = struct.Struct(">I")

M = TypeVar("M", bound=Struct)


class DaemonState(Struct, frozen=True, rename="camel"):
    """What the agent knows of the process it keeps; `problem` is one sentence, if there is one."""

    state: ImexState = ImexState.UNAVAILABLE
    partition: str = ""
    slot: int = -1
    generation: int = 0
    connected: tuple[int, ...] = ()
    problem: str = ""


def frame(message: Struct) -> bytes:
    body = msgspec.json.encode(message)
    if len(body) > LONGEST:
        raise Rejected(f"a message of {len(body)} bytes is too long: {LONGEST} are allowed")
    return _HEADER.pack(len(body)) + body


async def messages(reader: asyncio.StreamReader, type_: type[M]) -> AsyncIterator[M]:
    """Until the other side closes; Rejected if it sends what is no such message."""
    while True:
        try:
            (length,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
            if length > LONGEST:
                raise Rejected(f"a message of {length} bytes is too long: {LONGEST} are allowed")
            body = await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        try:
            yield msgspec.json.decode(body, type=type_)
        except ValueError as error:  # of msgspec's own, or because it is no UTF-8
            raise Rejected(f"not a {type_.__name__}: {error}") from error
