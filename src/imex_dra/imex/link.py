"""The protocol between `imex node` and `imex daemon` on one node: JSON messages over a unix socket.

`imex node` sends a `MemberList` whenever it changes. `imex daemon` sends its `DaemonState` at once and whenever it
changes. A frame is a length (four bytes, big endian) and a JSON message of at most 64 KiB.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec
from msgspec import Struct

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.errors import Rejected

MAX_MESSAGE_SIZE = 64 * 1024
_HEADER = struct.Struct(">I")

M = TypeVar("M", bound=Struct)


class DaemonState(Struct, frozen=True, rename="camel"):
    """The state of nvidia-imex and the member list that it runs with."""

    state: ImexState = ImexState.UNAVAILABLE
    partition: str = ""
    index: int = -1
    generation: int = 0
    connected: tuple[int, ...] | None = None
    """Indexes of the members that are connected in both directions, as nvidia-imex-ctl last reported them. None:
    not known, which is not the same as not connected.
    """
    unreported_since: str = ""
    """When nvidia-imex-ctl last reported connections, if that is long ago; RFC 3339."""
    problem: str = ""
    """One sentence; empty if there is none."""
    started_at: str = ""
    """When the nvidia-imex that runs, or that ended last, was started; RFC 3339. It identifies the process."""


def frame(message: Struct) -> bytes:
    body = msgspec.json.encode(message)
    _check_size(len(body))
    return _HEADER.pack(len(body)) + body


async def messages(reader: asyncio.StreamReader, type_: type[M]) -> AsyncIterator[M]:
    """Yields messages until the peer closes the connection; raises Rejected if it sends anything else."""
    while True:
        try:
            (length,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
            _check_size(length)
            body = await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        try:
            yield msgspec.json.decode(body, type=type_)
        except (ValueError, RecursionError) as error:  # msgspec's own errors, or invalid UTF-8
            raise Rejected(f"not a {type_.__name__}: {error}") from error


def _check_size(length: int) -> None:
    if length > MAX_MESSAGE_SIZE:
        raise Rejected(f"a message of {length} bytes is longer than the limit of {MAX_MESSAGE_SIZE} bytes")
