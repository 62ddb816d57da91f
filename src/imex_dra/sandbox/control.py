"""How one is told from outside what to do: a unix socket, one request, one reply.

Both are frames of JSON, as on a node's `daemon.sock` (`imex.link`). A request names what to `do`, and to what;
a reply has a `result`, or an `error` that is one sentence for the person who asked.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from imex_dra.base.errors import ImexError, Rejected, Unavailable
from imex_dra.imex.link import frame, messages

log = structlog.get_logger()

PATIENCE = 120.0
"""Seconds that an answer may take: some actions wait for programs to start."""


class Request(Struct, frozen=True, omit_defaults=True):
    do: str
    node: str = ""
    program: str = ""
    options: dict[str, Any] = {}


class Reply(Struct, frozen=True, omit_defaults=True):
    result: Any = None
    error: str = ""


Answer = Callable[[Request], Awaitable[Any]]


@asynccontextmanager
async def serving(path: Path, answer: Answer) -> AsyncIterator[None]:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async for request in messages(reader, Request):
                writer.write(frame(await _reply(answer, request)))
                await writer.drain()
        except (Rejected, ConnectionError) as error:
            log.warning("a request that can't be understood or answered", error=str(error))
        finally:
            writer.close()

    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(converse, path)
    path.chmod(0o600)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


async def _reply(answer: Answer, request: Request) -> Reply:
    try:
        return Reply(result=await answer(request))
    except ImexError as error:
        return Reply(error=str(error))
    except Exception as error:
        log.error("a request failed unexpectedly", do=request.do, exc_info=error)
        return Reply(error=f"{request.do}: unexpected {type(error).__name__}: {error}")


def ask(path: Path, request: Request, *, within: float = PATIENCE) -> Any:
    """Raises Rejected with the other side's words, Unavailable if there is nobody."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(within)
            line.connect(str(path))
            line.sendall(frame(request))
            with line.makefile("rb") as stream:
                return _result(_body(stream.read(4), stream.read))
    except OSError as error:
        raise Unavailable(f"nobody answers on {path}: {error}") from error


async def forward(path: Path, request: Request, *, within: float = PATIENCE) -> Any:
    """`ask`, from an event loop."""
    try:
        async with asyncio.timeout(within):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(frame(request))
                async for reply in messages(reader, Reply):
                    return _verdict(reply)
            finally:
                writer.close()
    except OSError as error:  # TimeoutError is one
        raise Unavailable(f"nobody answers on {path}: {error or 'no reply in time'}") from error
    raise Unavailable(f"{path} was closed without a reply")


def _body(header: bytes, read: Callable[[int], bytes]) -> bytes:
    if len(header) < 4:
        raise ConnectionError("closed without a reply")
    return read(struct.unpack(">I", header)[0])


def _result(body: bytes) -> Any:
    return _verdict(msgspec.json.decode(body, type=Reply))


def _verdict(reply: Reply) -> Any:
    if reply.error:
        raise Rejected(reply.error)
    return reply.result
