"""Queries the IMEX daemon with nvidia-imex-ctl.

`-q` is cheap and works even in broken states; no valid answer in time means UNAVAILABLE. `-N` queries every node
and may hang; no valid answer means that the connections are unknown, not that there are none. The whole process
group of a call that hangs is killed: a surviving child would keep our end of the pipe open.
"""

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from imex_dra.api.nvlinknode import ImexState

log = structlog.get_logger()

_OWN_NODE = re.compile(r"^Node #(\d{1,6})\s*\* .* \* ", re.MULTILINE)


class Connection(Struct):
    status: str


class DomainNode(Struct):
    version: str = ""
    """Of its nvidia-imex, as a rule without the last part of the driver's version; empty if it did not answer."""
    connections: dict[int, Connection] = {}


class DomainView(Struct):
    """The part of `nvidia-imex-ctl -N -j` that we use: versions, and connections by the node IDs of both ends."""

    nodes: dict[int, DomainNode]

    def connected_both_ways(self, index: int) -> tuple[int, ...] | None:
        """Indexes of the nodes that are connected with this one, as reported by both ends; None if this one is
        not in the answer.
        """
        if index not in self.nodes:
            return None
        others = (other for other in self.nodes if other != index)
        return tuple(sorted(o for o in others if self._connected(index, o) and self._connected(o, index)))

    def _connected(self, source: int, target: int) -> bool:
        node = self.nodes.get(source)
        connection = node.connections.get(target) if node else None
        return connection is not None and connection.status == "CONNECTED"


class ImexCtl:
    def __init__(self, command: Sequence[str], *, timeout: float = 5.0) -> None:
        self._command = command
        self._timeout = timeout

    async def state(self, config: Path) -> ImexState:
        """`config` is the configuration of the running nvidia-imex."""
        output = (await self._query(config, "-q")).decode(errors="replace").strip()
        try:
            return ImexState(output)
        except ValueError:
            return ImexState.UNAVAILABLE

    async def domain(self, config: Path) -> DomainView | None:
        output = await self._query(config, "-N", "-j")
        try:
            return msgspec.json.decode(output, type=DomainView)
        except (ValueError, RecursionError):  # msgspec's own errors, or invalid UTF-8
            return None

    async def own_index(self, config: Path) -> int | None:
        """Which entry of its nodes file nvidia-imex takes for itself. None if the answer does not tell: only the
        text of `-N` marks it, with asterisks around the address.
        """
        output = (await self._query(config, "-N")).decode(errors="replace")
        marked = _OWN_NODE.findall(output)
        return int(marked[0]) if len(marked) == 1 else None

    async def _query(self, config: Path, *flags: str) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                "-c",
                str(config),
                *flags,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            log.error("nvidia-imex-ctl cannot be started", command=self._command[0], error=error.strerror)
            return b""
        try:
            async with asyncio.timeout(self._timeout):
                output, _ = await process.communicate()
                return output
        except TimeoutError:
            return b""
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
