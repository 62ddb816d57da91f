"""The agent's socket: whoever connects hears the state, at once and at every change, and sends member lists."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import structlog

from imex_dra.base.errors import ImexError
from imex_dra.imex.link import DaemonState, frame, messages
from imex_dra.imex.membership import Membership

log = structlog.get_logger()


class Listeners:
    def __init__(self, take: Callable[[Membership], None]) -> None:
        self.state = DaemonState()
        self._take = take
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def served(self, socket: Path) -> AsyncIterator[None]:
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        async with await asyncio.start_unix_server(self._serve, socket):
            try:
                yield
            finally:
                for writer in self._writers:
                    writer.close()  # from Python 3.12 on a server waits for its connections

    def say(self, **changes: object) -> None:
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
            async for membership in messages(reader, Membership):
                self._take(membership)
        except ImexError as error:
            log.warning("the node program sent something strange", error=str(error))
        except asyncio.CancelledError:
            log.debug("the agent stops while the node program listens")
        finally:
            self._writers.discard(writer)
            writer.close()
