"""Answers in the API server's place: a share of requests fails, watches end with 410 Gone.

One request per connection, passed on as HTTP/1.0, so that an answer ends with its connection and is never cut into
chunks: the lines of a watch can then be told apart. Bearer tokens pass through; client certificates would not.
"""

import asyncio
import ssl
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from imex_dra.sandbox.faults.conduct import Answer, Conduct, Turns
from imex_dra.sandbox.kubernetes.certificates import Certificate

HOST = "127.0.0.1"
_LONGEST_LINE = 64 * 1024 * 1024
_OURS = ("connection", "accept-encoding")

GONE = msgspec.json.encode(
    {
        "type": "ERROR",
        "object": {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "too old resource version: a fault says so",
            "reason": "Expired",
            "code": 410,
        },
    }
)


class Tls:
    """Shared by all lines of a cluster: whom we are, and whom we trust."""

    def __init__(self, own: Certificate, authority: Path) -> None:
        self._own = own
        self._authority = authority

    @cached_property
    def serving(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self._own)
        return context

    @cached_property
    def asking(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._authority)


class Request(NamedTuple):
    line: str
    headers: tuple[str, ...]

    @property
    def watches(self) -> bool:
        query = parse_qs(urlsplit(self.line.split(" ")[1]).query)
        return query.get("watch", ["0"])[0] in ("1", "true")

    @property
    def length(self) -> int:
        return next((int(h.partition(":")[2]) for h in self.headers if h.lower().startswith("content-length:")), 0)

    def passed_on(self) -> bytes:
        kept = (header for header in self.headers if header.partition(":")[0].lower() not in _OURS)
        return "\r\n".join([self.line.replace("HTTP/1.1", "HTTP/1.0"), *kept, "", ""]).encode("latin-1")


def parse(head: bytes) -> Request:
    line, *headers = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    return Request(line, tuple(headers))


def response(answer: Answer) -> bytes:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": answer.reason,
        "code": answer.code,
    }
    body = msgspec.json.encode({**status, "message": f"a fault answers {answer.code} in the API server's place"})
    head = [f"HTTP/1.1 {answer.code} {answer.reason}", "Content-Type: application/json", "Connection: close"]
    head += [f"Content-Length: {len(body)}"]
    head += [f"Retry-After: {answer.retry_after}"] if answer.retry_after is not None else []
    return "\r\n".join([*head, "", ""]).encode() + body


class Interception:
    """Decides about each request of one line."""

    def __init__(self, conduct: Conduct, target: tuple[str, int], tls: Tls, flowing: asyncio.Event) -> None:
        self._turns = Turns(conduct.answers)
        self._watch_seconds = conduct.watch_seconds
        self._target = target
        self._tls = tls
        self._flowing = flowing

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = parse(await reader.readuntil(b"\r\n\r\n"))
        body = await reader.readexactly(request.length)
        await self._flowing.wait()
        if answer := self._turns.next():
            writer.write(response(answer))
        else:
            await self._pass_on(request, body, writer)
        await writer.drain()

    async def _pass_on(self, request: Request, body: bytes, writer: asyncio.StreamWriter) -> None:
        upstream, asking = await asyncio.open_connection(*self._target, ssl=self._tls.asking, limit=_LONGEST_LINE)
        try:
            asking.write(request.passed_on() + body)
            limit = self._watch_seconds if request.watches else None
            if not await self._lines(upstream, writer, limit):
                writer.write(GONE + b"\n")
        finally:
            asking.transport.abort()

    async def _lines(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: float | None
    ) -> bool:
        """Whole lines, until the answer ends; False if the time was over before."""
        writer.write(await upstream.readuntil(b"\r\n\r\n"))
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while line := await upstream.readline():
                    await self._flowing.wait()
                    writer.write(line)
                    await writer.drain()
                return True
        return False
