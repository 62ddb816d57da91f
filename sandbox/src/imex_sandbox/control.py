"""The control protocol of the sandbox: a Unix socket, one request, one reply.

A frame is a length (four bytes, big endian) and a JSON message of at most 64 KiB. A request names an action and
its target. A reply has a `result`, or an `error` for the person who sent the request.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec import Struct

from imex_dra.base.errors import ImexError, Rejected, Unavailable

log = structlog.get_logger()

_MAX_MESSAGE_SIZE = 64 * 1024
_HEADER = struct.Struct(">I")

M = TypeVar("M", bound=Struct)

REPLY_TIMEOUT = 120.0
"""Seconds. Some actions wait for programs to start."""


class Request(Struct, frozen=True, omit_defaults=True):
    action: str
    node: str = ""
    program: str = ""
    options: dict[str, Any] = {}


class Reply(Struct, frozen=True, omit_defaults=True):
    result: Any = None
    error: str = ""


Handler = Callable[[Request], Awaitable[Any]]


@asynccontextmanager
async def serving(path: Path, handler: Handler) -> AsyncIterator[None]:
    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async for request in messages(reader, Request):
                writer.write(frame(await _reply(handler, request)))
                await writer.drain()
        except (Rejected, ConnectionError) as error:
            log.warning("control connection failed", error=str(error))
        finally:
            writer.close()

    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(serve_connection, path)
    path.chmod(0o600)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


async def _reply(handler: Handler, request: Request) -> Reply:
    try:
        return Reply(result=await handler(request))
    except ImexError as error:
        return Reply(error=str(error))
    except Exception as error:
        log.error("unexpected error in a control request", action=request.action, exc_info=error)
        return Reply(error=f"{request.action}: unexpected {type(error).__name__}: {error}")


def ask(path: Path, request: Request, *, within: float = REPLY_TIMEOUT) -> Any:
    """Return the result. Raise Rejected with the error of the reply, Unavailable if there is no reply."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(within)
            connection.connect(str(path))
            connection.sendall(frame(request))
            with connection.makefile("rb") as stream:
                return _result(msgspec.json.decode(_read_frame(stream.read), type=Reply))
    except OSError as error:
        raise Unavailable(f"no reply from {path}: {error}") from error


async def ask_async(path: Path, request: Request, *, within: float = REPLY_TIMEOUT) -> Any:
    try:
        async with asyncio.timeout(within):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(frame(request))
                async for reply in messages(reader, Reply):
                    return _result(reply)
            finally:
                writer.close()
    except OSError as error:  # includes TimeoutError, which has no message
        raise Unavailable(f"no reply from {path}: {str(error) or f'timed out after {within:g} s'}") from error
    raise Unavailable(f"no reply from {path}: the connection was closed")


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
    if length > _MAX_MESSAGE_SIZE:
        raise Rejected(f"a message of {length} bytes is longer than the limit of {_MAX_MESSAGE_SIZE} bytes")


def _read_frame(read: Callable[[int], bytes]) -> bytes:
    header = read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise ConnectionError("the connection was closed")
    return read(_HEADER.unpack(header)[0])


def _result(reply: Reply) -> Any:
    if reply.error:
        raise Rejected(reply.error)
    return reply.result
