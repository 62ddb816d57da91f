"""A node's line to the API server: a forwarder between that node's programs and the real one.

While nothing is wrong, bytes are passed on as they come, with no TLS of our own: clients see the API server's own
certificate. A line keeps its port for life. A fault changes how it behaves (`conduct`); where that needs other
connections than there are, those are cut, and clients connect anew.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import closing

import structlog

from imex_dra.sandbox.faults.conduct import Conduct, Manner
from imex_dra.sandbox.faults.interception import HOST, Interception, Tls
from imex_dra.sandbox.kubernetes.ports import ReservedPort, without_delay

log = structlog.get_logger()

_CHUNK = 65536

Address = tuple[str, int]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


class Line:
    def __init__(self, target: Address, tls: Tls) -> None:
        self._target = target
        self._tls = tls
        self._port = ReservedPort(HOST)
        self.url = f"https://{HOST}:{self._port.number}"
        self.conduct = Conduct()
        self._flowing = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._flowing.set()
        await self._listen()

    async def stop(self) -> None:
        await self._cut()
        self._port.release()

    async def behave(self, conduct: Conduct) -> None:
        before, self.conduct = self.conduct, conduct
        if _connections(before) != _connections(conduct):
            await self._cut()
            await self._listen()
        if conduct.silent:
            self._flowing.clear()
        else:
            self._flowing.set()

    async def _listen(self) -> None:
        match self.conduct.manner:
            case Manner.SPLICE:
                self._server = await asyncio.start_server(self._accepting(self._splice), sock=self._socket())
            case Manner.INTERCEPT:
                interception = Interception(self.conduct, self._target, self._tls, self._flowing)
                accept = self._accepting(interception.serve)
                self._server = await asyncio.start_server(accept, sock=self._socket(), ssl=self._tls.serving)

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _socket(self) -> socket.socket:
        sock = without_delay(socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((HOST, self._port.number))
        return sock

    def _accepting(self, serve: Serve) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(_attend(serve(reader, writer), writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        return accept

    async def _splice(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        with closing(far_writer):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, far_writer))
                group.create_task(self._copy(far_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK):
            await self._flowing.wait()
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()


def _connections(conduct: Conduct) -> object:
    """What decides whether connections may stay: silence alone ends none."""
    return conduct.manner, conduct.answers, conduct.watch_seconds


async def _attend(work: Coroutine[None, None, None], writer: asyncio.StreamWriter) -> None:
    """Whatever goes wrong with a connection ends it, and nothing else."""
    try:
        await work
        writer.close()
        await writer.wait_closed()
    except* (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as broken:
        log.debug("a connection broke", errors=[str(error) for error in broken.exceptions])
    finally:
        writer.transport.abort()
