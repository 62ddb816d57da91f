"""A fault-injecting proxy in front of a real API server."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import msgspec
import yaml


@dataclass
class Hold:
    """Stops the first request that matches: before the API server gets it, or before its response is returned."""

    matches: Callable[[str, bytes], bool]
    """Of the request line without the protocol, and the body."""
    after: bool
    reached: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class FaultProxy:
    """Plain HTTP in, TLS out. Each connection carries one request, so that a fault affects every request."""

    url: str
    authority: Path
    requests: list[str] = field(default_factory=list)
    _responses: deque[bytes] = field(default_factory=deque)
    _forwarding: asyncio.Event = field(default_factory=asyncio.Event)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _refusing: bool = False
    _failing: tuple[str, int] = ("", 0)
    refused: int = 0
    """Connections that were reset at once."""
    _hold: Hold | None = None
    _handlers: set[asyncio.Task[None]] = field(default_factory=set)
    address: str = ""

    async def __aenter__(self) -> Self:
        self._forwarding.set()
        self._server = await asyncio.start_server(self._serve, "::1" if ":" in self.address else "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        self._forwarding.set()
        await self._server.wait_closed()
        await asyncio.sleep(0)  # connections that were accepted before the server was closed
        for handler in self._handlers:
            handler.cancel()
        if self._handlers:
            await asyncio.wait(self._handlers)

    def kubeconfig(self, direct: Path, directory: Path) -> Path:
        """The user of the kubeconfig `direct`, with this proxy as the server."""
        config = yaml.safe_load(direct.read_text())
        config["clusters"][0]["cluster"] = {"server": self.address}
        path = directory / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def answer(self, code: int, *, times: int = 1, retry_after: str = "") -> None:
        """Answers the next requests with this status. The body is always a Status, also for 200."""
        reason = {410: "Expired", 429: "TooManyRequests", 503: "ServiceUnavailable"}.get(code, "Unknown")
        body = msgspec.json.encode(
            {"kind": "Status", "code": code, "reason": reason, "message": f"injected {code}"}
        )
        body += b"\n"
        headers = [f"HTTP/1.1 {code} {reason}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        headers += [f"Retry-After: {retry_after}"] if retry_after else []
        self._responses.extend([("\r\n".join([*headers, "Connection: close", "", ""])).encode() + body] * times)

    def fail_path(self, path: str, *, times: int) -> None:
        """Answers the next requests for this path with 503."""
        self._failing = (path, times)

    def cut(self, *, for_good: bool = False) -> None:
        """Resets all connections; `for_good`: also new ones, until `resume`."""
        self._refusing = for_good
        for writer in list(self._open):
            writer.transport.abort()

    def hold(self, matches: Callable[[str, bytes], bool], *, after: bool) -> Hold:
        """A held request is never continued. It ends with its connection."""
        self._hold = Hold(matches, after)
        return self._hold

    def hang(self) -> None:
        """Keeps connections open and forwards nothing, until `resume`."""
        self._forwarding.clear()

    def resume(self) -> None:
        self._refusing = False
        self._forwarding.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        if self._refusing:
            self.refused += 1
            self.cut(for_good=True)
        # Python 3.11 logs an error for a handler that ends as cancelled.
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._relay(reader, writer)
        self._open.discard(writer)
        writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        request = lines[0].removesuffix(" HTTP/1.1")
        self.requests.append(request)
        length = next((int(line[15:]) for line in lines if line.lower().startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        await self._forwarding.wait()
        path, times = self._failing
        if times and path in lines[0]:
            self._failing = (path, times - 1)
            self.answer(503)
        if self._responses:
            writer.write(self._responses.popleft())
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            return
        hold = self._hold if self._hold and self._hold.matches(request, body) else None
        if hold is not None:
            self._hold = None
            if not hold.after:
                await self._stay(hold, reader)
                return
        kept = [line for line in lines if not line.lower().startswith("connection:")]
        kept.insert(1, "Connection: close")
        if hold is not None:
            await self._forward("\r\n".join(kept).encode() + body, None)
            await self._stay(hold, reader)
            return
        await self._forward("\r\n".join(kept).encode() + body, writer)

    async def _stay(self, hold: Hold, reader: asyncio.StreamReader) -> None:
        hold.reached.set()
        await reader.read()

    async def _forward(self, request: bytes, writer: asyncio.StreamWriter | None) -> None:
        """Without a writer the response is read and dropped."""
        target = urlsplit(self.url)
        trust = ssl.create_default_context(cafile=self.authority)
        upstream_reader, upstream_writer = await asyncio.open_connection(target.hostname, target.port, ssl=trust)
        self._open.add(upstream_writer)
        try:
            upstream_writer.write(request)
            while chunk := await upstream_reader.read(65536):
                await self._forwarding.wait()
                if writer is not None:
                    writer.write(chunk)
                    await writer.drain()
            if writer is not None:
                writer.close()
                await writer.wait_closed()
        finally:
            self._open.discard(upstream_writer)
            upstream_writer.transport.abort()
