"""The proxy of one node: a TCP forwarder between the node's programs and the API server.

By default it forwards bytes unchanged and does not terminate TLS, so clients see the API server's own
certificate. A proxy keeps its port for its whole life. A fault changes its behavior; if the new behavior handles
connections differently, the proxy closes the existing ones and clients reconnect.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import closing

import structlog

from imex_sandbox.kubernetes.apiserver import ReservedPort
from imex_sandbox.kubernetes.relay import disable_nagle
from imex_sandbox.proxy.behavior import Behavior, Mode
from imex_sandbox.proxy.interceptor import Interceptor, Tls

log = structlog.get_logger()

HOST = "127.0.0.1"
_CHUNK = 65536

Address = tuple[str, int]
ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


class NodeProxy:
    def __init__(self, target: Address, tls: Tls) -> None:
        self._target = target
        self._tls = tls
        self._port = ReservedPort(HOST)
        self.url = f"https://{HOST}:{self._port.number}"
        self._behavior = Behavior()
        self._flowing = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._flowing.set()
        await self._listen()

    async def stop(self) -> None:
        await self._close_connections()
        self._port.release()

    async def set_behavior(self, behavior: Behavior) -> None:
        previous, self._behavior = self._behavior, behavior
        if not behavior.keeps_connections(previous):
            await self._close_connections()
            await self._listen()
        if behavior.stall:
            self._flowing.clear()
        else:
            self._flowing.set()

    async def _listen(self) -> None:
        match self._behavior.mode:
            case Mode.FORWARD:
                self._server = await asyncio.start_server(self._accepting(self._forward), sock=self._socket())
            case Mode.INTERCEPT:
                interceptor = Interceptor(self._behavior, self._target, self._tls, self._flowing)
                accept = self._accepting(interceptor.serve)
                self._server = await asyncio.start_server(accept, sock=self._socket(), ssl=self._tls.server)

    async def _close_connections(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _socket(self) -> socket.socket:
        sock = disable_nagle(socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((HOST, self._port.number))
        return sock

    def _accepting(
        self, handle: ConnectionHandler
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(_handle_connection(handle(reader, writer), writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        return accept

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        with closing(upstream_writer):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, upstream_writer))
                group.create_task(self._copy(upstream_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK):
            await self._flowing.wait()
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()


async def _handle_connection(work: Coroutine[None, None, None], writer: asyncio.StreamWriter) -> None:
    """A broken connection, or a malformed request, ends that connection only."""
    try:
        await work
        writer.close()
        await writer.wait_closed()
    except* (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as broken:
        log.debug("connection failed", errors=[str(error) for error in broken.exceptions])
    finally:
        writer.transport.abort()
