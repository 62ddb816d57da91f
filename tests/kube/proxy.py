"""A line to the API server that can be cut, stopped, or made to answer in its place."""

import asyncio
import ssl
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import msgspec
import yaml


@dataclass
class Proxy:
    """Plain HTTP in, TLS out, one request per connection, so that whatever happens, happens to all."""

    url: str
    authority: Path
    requests: list[str] = field(default_factory=list)
    _canned: deque[bytes] = field(default_factory=deque)
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _severed: bool = False
    address: str = ""

    async def __aenter__(self) -> Self:
        self._flowing.set()
        self._server = await asyncio.start_server(self._serve, "::1" if ":" in self.address else "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        self._flowing.set()
        await self._server.wait_closed()

    def kubeconfig(self, direct: Path, directory: Path) -> Path:
        """The same user as in `direct`, by way of this proxy."""
        config = yaml.safe_load(direct.read_text())
        config["clusters"][0]["cluster"] = {"server": self.address}
        path = directory / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def answer(self, code: int, *, times: int = 1, retry_after: str = "") -> None:
        """The next requests get this status instead of an answer; 200 comes with nonsense."""
        reason = {410: "Expired", 429: "TooManyRequests", 503: "ServiceUnavailable"}.get(code, "Unknown")
        body = msgspec.json.encode(
            {"kind": "Status", "code": code, "reason": reason, "message": f"told to say {code}"}
        )
        body += b"\n"
        headers = [f"HTTP/1.1 {code} {reason}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        headers += [f"Retry-After: {retry_after}"] if retry_after else []
        self._canned.extend([("\r\n".join([*headers, "Connection: close", "", ""])).encode() + body] * times)

    def cut(self, *, for_good: bool = False) -> None:
        """Ends all connections; `for_good` also those to come, until `flow`."""
        self._severed = for_good
        for writer in list(self._open):
            writer.transport.abort()

    def hang(self) -> None:
        self._flowing.clear()

    def flow(self) -> None:
        self._severed = False
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        if self._severed:
            self.cut(for_good=True)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._relay(reader, writer)
        self._open.discard(writer)
        writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.requests.append(lines[0].removesuffix(" HTTP/1.1"))
        length = next((int(line[15:]) for line in lines if line.lower().startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        await self._flowing.wait()
        if self._canned:
            writer.write(self._canned.popleft())
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            return
        kept = [line for line in lines if not line.lower().startswith("connection:")]
        kept.insert(1, "Connection: close")
        await self._forward("\r\n".join(kept).encode() + body, writer)

    async def _forward(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        target = urlsplit(self.url)
        trust = ssl.create_default_context(cafile=self.authority)
        upstream, sending = await asyncio.open_connection(target.hostname, target.port, ssl=trust)
        self._open.add(sending)
        try:
            sending.write(request)
            while chunk := await upstream.read(65536):
                await self._flowing.wait()
                writer.write(chunk)
                await writer.drain()
            writer.close()
            await writer.wait_closed()
        finally:
            self._open.discard(sending)
            sending.transport.abort()
