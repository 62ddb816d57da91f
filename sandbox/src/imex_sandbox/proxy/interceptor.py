"""Reads the HTTP requests of one node: some get an injected error, the others go to the API server.

Each connection carries one request, forwarded as HTTP/1.0. The response then ends with its connection and is not
chunked, so the proxy can forward a watch line by line and end it with a 410 event. Bearer tokens pass through;
client certificates do not.
"""

import asyncio
import ssl
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from imex_sandbox.kubernetes.certificates import Certificate
from imex_sandbox.proxy.behavior import GONE, Behavior, ErrorSchedule

_LONGEST_LINE = 64 * 1024 * 1024
_REPLACED_HEADERS = ("connection", "accept-encoding")


class Tls:
    """The certificate and the authority that all proxies of a cluster share."""

    def __init__(self, certificate: Certificate, authority: Path) -> None:
        self._certificate = certificate
        self._authority = authority

    @cached_property
    def server(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self._certificate)
        return context

    @cached_property
    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._authority)


class RequestHead(NamedTuple):
    request_line: str
    headers: tuple[str, ...]

    @property
    def is_watch(self) -> bool:
        query = parse_qs(urlsplit(self.request_line.split(" ")[1]).query)
        return query.get("watch", ["0"])[0] in ("1", "true")

    @property
    def content_length(self) -> int:
        return next((int(h.partition(":")[2]) for h in self.headers if h.lower().startswith("content-length:")), 0)

    def encode(self) -> bytes:
        """As it is sent to the API server."""
        headers = (h for h in self.headers if h.partition(":")[0].lower() not in _REPLACED_HEADERS)
        return "\r\n".join([self.request_line.replace("HTTP/1.1", "HTTP/1.0"), *headers, "", ""]).encode("latin-1")


def parse_head(head: bytes) -> RequestHead:
    request_line, *headers = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    return RequestHead(request_line, tuple(headers))


class Interceptor:
    """While `flowing` is clear, requests and responses are held back."""

    def __init__(self, behavior: Behavior, target: tuple[str, int], tls: Tls, flowing: asyncio.Event) -> None:
        self._schedule = ErrorSchedule(behavior.errors)
        self._watch_seconds = behavior.watch_seconds
        self._target = target
        self._tls = tls
        self._flowing = flowing

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = parse_head(await reader.readuntil(b"\r\n\r\n"))
        body = await reader.readexactly(request.content_length)
        await self._flowing.wait()
        if error := self._schedule.next():
            writer.write(error.response())
        else:
            await self._forward(request, body, writer)
        await writer.drain()

    async def _forward(self, request: RequestHead, body: bytes, writer: asyncio.StreamWriter) -> None:
        response, upstream = await asyncio.open_connection(
            *self._target, ssl=self._tls.client, limit=_LONGEST_LINE
        )
        try:
            upstream.write(request.encode() + body)
            limit = self._watch_seconds if request.is_watch else None
            if not await self._copy_lines(response, writer, limit):
                writer.write(GONE + b"\n")
        finally:
            upstream.transport.abort()

    async def _copy_lines(
        self, response: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: float | None
    ) -> bool:
        """Copy whole lines, so that a 410 event never follows half an event. False if the time limit ended it."""
        writer.write(await response.readuntil(b"\r\n\r\n"))
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while line := await response.readline():
                    await self._flowing.wait()
                    writer.write(line)
                    await writer.drain()
                return True
        return False
