"""The socket of `imex daemon`: each client gets the state, at once and at every change, and sends member lists."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import structlog

from imex_dra.base.errors import ImexError
from imex_dra.imex.link import DaemonState, frame, messages
from imex_dra.imex.memberlist import MemberList

log = structlog.get_logger()


class StateServer:
    def __init__(self, on_member_list: Callable[[MemberList], None]) -> None:
        self.state = DaemonState()
        self._on_member_list = on_member_list
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def listening(self, socket: Path) -> AsyncIterator[None]:
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        async with await asyncio.start_unix_server(self._serve, socket):
            try:
                yield
            finally:
                # Since Python 3.12, closing a server waits for its connections.
                for writer in self._writers:
                    writer.close()

    def publish(self, **changes: object) -> None:
        state = msgspec.structs.replace(self.state, **changes)
        if state == self.state:
            return
        self.state = state
        for writer in self._writers:
            writer.write(frame(state))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            writer.write(frame(self.state))
            async for member_list in messages(reader, MemberList):
                self._on_member_list(member_list)
        except ImexError as error:
            log.warning("invalid message from imex node, closing the connection", error=str(error))
        except asyncio.CancelledError:
            log.debug("stopping while imex node is connected")
        finally:
            self._writers.discard(writer)
            writer.close()
