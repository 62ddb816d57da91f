"""Asking the daemon what it thinks, through its own ctl.

`-q` is cheap and answers even in broken states; `-N` asks every node and may hang: each call has a time limit,
and no answer is an answer (UNAVAILABLE). One that hangs is killed with all its children, which would otherwise
hold our end of the pipe open for as long as they like.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct, field

from imex_dra.api.nvlinknode import ImexState

log = structlog.get_logger()


class Connection(Struct):
    status: str


class DomainNode(Struct):
    status: str
    version: str = ""
    connections: dict[str, Connection] = {}


class DomainView(Struct):
    nodes: dict[str, DomainNode]
    state: str = field(name="status", default="")

    def connected_both_ways(self, slot: int) -> tuple[int, ...]:
        """The slots that slot is connected with, seen from both ends."""
        return tuple(
            sorted(
                int(other)
                for other in self.nodes
                if int(other) != slot and self._connected(slot, int(other)) and self._connected(int(other), slot)
            )
        )

    def _connected(self, one: int, other: int) -> bool:
        node = self.nodes.get(str(one))
        connection = node.connections.get(str(other)) if node else None
        return connection is not None and connection.status == "CONNECTED"


class Ctl:
    def __init__(self, command: Sequence[str], config: Path, *, limit: float = 5.0) -> None:
        self._command = command
        self._config = config
        self._limit = limit

    async def state(self) -> ImexState:
        answer = (await self._ask("-q")).decode(errors="replace").strip()
        try:
            return ImexState(answer)
        except ValueError:
            return ImexState.UNAVAILABLE

    async def domain(self) -> DomainView | None:
        answer = await self._ask("-N", "-j")
        try:
            return msgspec.json.decode(answer, type=DomainView)
        except ValueError:  # of msgspec's own, or because it is no UTF-8
            return None

    async def _ask(self, *flags: str) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                "-c",
                str(self._config),
                *flags,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            log.error("nvidia-imex-ctl can't be started", command=self._command[0], error=error.strerror)
            return b""
        try:
            async with asyncio.timeout(self._limit):
                output, _ = await process.communicate()
                return output
        except TimeoutError:
            return b""
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
