"""The HTTP transport of all clients: closes what httpx2 leaves open.

If a request is cancelled during its TLS handshake, httpx2 2.16 drops the connection without closing it, and the
socket stays open until the garbage collector finds it. Requests are cancelled all the time here: with a prepare
that ends, a watch that is replaced, a leader that steps down.
"""

import ssl
from typing import Any

import httpcore2
import httpx2


class Transport(httpx2.AsyncHTTPTransport):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # There is no public parameter for it.
        self._pool._network_backend = _Backend(self._pool._network_backend)


class _Backend(httpcore2.AsyncNetworkBackend):
    def __init__(self, backend: httpcore2.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(self, *arguments: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        return _Stream(await self._backend.connect_tcp(*arguments, **options))


class _Stream(httpcore2.AsyncNetworkStream):
    """A TCP connection before its TLS handshake, or without TLS."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
