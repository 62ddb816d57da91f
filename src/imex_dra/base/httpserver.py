"""The smallest HTTP server that a probe, a scrape and a review of admission need.

One request per connection, and nothing that a client sends can keep a connection, or grow memory, without limit:
requests have a largest size, a time limit, and there is a largest number of them at a time. Who only holds
connections keeps nobody out: a probe that is not answered would restart the program.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import structlog

log = structlog.get_logger()

_MAX_HEADER = 16 * 1024
_MAX_CONNECTIONS = 256
_TIME_LIMIT = 10.0
"""Seconds to receive a request and answer it; with TLS also, before that, for the handshake."""
_BIND_PERIOD = 5.0
"""Seconds until the server tries again to listen on an address that is in use."""

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Response(NamedTuple):
    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"


Handler = Callable[[bytes], Awaitable[Response]]
"""Called with the body of the request, which is empty for GET."""

Routes = Mapping[tuple[str, str], Handler]
"""By method and path."""


class _BadRequest(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(_PHRASES[status])
        self.status = status


class HttpServer:
    """`max_body`: bytes; 0 if no route takes a body."""

    def __init__(self, routes: Routes, *, max_body: int = 0, time_limit: float = _TIME_LIMIT) -> None:
        self.routes = routes
        self._max_body = max_body
        self._time_limit = time_limit
        self._connections = 0
        self._receiving: dict[asyncio.StreamWriter, None] = {}
        """Connections whose request has not arrived yet, the oldest first."""
        self.address: tuple[str, int] | None = None
        """Where it listens."""

    @asynccontextmanager
    async def listening(
        self, host: str | None, port: int, *, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[None]:
        """`host`: None for all addresses. Raises OSError if it cannot listen there."""
        limit = self._time_limit if tls else None
        server = await asyncio.start_server(
            self._serve, host, port, limit=_MAX_HEADER, ssl=tls, ssl_handshake_timeout=limit
        )
        found = server.sockets[0].getsockname()
        self.address = found[0], found[1]
        try:
            yield
        finally:
            self.address = None
            server.close()

    async def run(self, host: str | None, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """Until cancelled. Waits while the address is in use: during a rolling update on the host's network two
        programs run on a node, and the older one has the port until it ends.
        """
        while True:
            try:
                async with self.listening(host, port, tls=tls):
                    await asyncio.Event().wait()
            except OSError as error:
                log.warning("cannot listen", port=port, error=str(error), retry_in=_BIND_PERIOD)
            await asyncio.sleep(_BIND_PERIOD)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        self._receiving[writer] = None
        if self._connections > _MAX_CONNECTIONS:
            self._close_oldest()
        # A client that has gone is no error of ours.
        # At the end of the program the connections that are left end quietly, too: asyncio of Python 3.11 logs a
        # handler that was cancelled as an error.
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                async with asyncio.timeout(self._time_limit):
                    response = await self._respond(reader, writer)
                    writer.write(_encoded(response))
                    await writer.drain()
            finally:
                self._connections -= 1
                self._receiving.pop(writer, None)
                writer.close()

    def _close_oldest(self) -> None:
        """Of those whose request has not arrived; the new one is among them."""
        oldest = next(iter(self._receiving))
        del self._receiving[oldest]
        oldest.transport.abort()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Response:
        try:
            method, path, body = await self._request(reader)
        except _BadRequest as error:
            return _text(error.status)
        finally:
            self._receiving.pop(writer, None)
        handler = self.routes.get((method, path))
        if handler is None:
            known = any(path == other for _, other in self.routes)
            return _text(405 if known else 404)
        try:
            return await handler(body)
        except Exception as error:
            log.error("a request failed with an unexpected error", path=path, exc_info=error)
            return _text(500)

    async def _request(self, reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError as error:
            raise _BadRequest(431) from error
        first, *lines = head.split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise _BadRequest(400)
        fields = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not (length.isascii() and length.isdecimal()):
            raise _BadRequest(400)
        if len(length) > 12 or int(length) > self._max_body:
            raise _BadRequest(413)
        return words[0], words[1].partition("?")[0], await reader.readexactly(int(length))


def _encoded(response: Response) -> bytes:
    status = f"{response.status} {_PHRASES[response.status]}"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {response.content_type}\r\nContent-Length: {len(response.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + response.body


def _text(status: int) -> Response:
    return Response(status, f"{_PHRASES[status]}\n".encode())
