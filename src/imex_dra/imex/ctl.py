"""Queries the IMEX daemon with nvidia-imex-ctl.

`-q` is cheap and works even in broken states; no valid answer in time means UNAVAILABLE. `-N` queries every node
and may hang; no valid answer means that the connections are unknown, not that there are none. The whole process
group of a call that hangs is killed: a surviving child would keep our end of the pipe open.

What it said last is kept as it was, for people: `imex node` shows it on the path /imex.
"""

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
from msgspec import Struct

from imex_dra.api.nvlinknode import ImexState
from imex_dra.base.clock import Clock, rfc3339

log = structlog.get_logger()

_OWN_NODE = re.compile(r"^Node #(\d{1,6})\s*\* .* \* ", re.MULTILINE)


_MAX_KEPT = 256 * 1024
"""Bytes of an answer that are kept for people."""
_MAX_ERRORS = 4096


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

    def connected_either_way(self, index: int) -> frozenset[int]:
        """Indexes of the nodes that are connected with this one, as reported by one end at least."""
        own = self.nodes[index].connections if index in self.nodes else {}
        # A node that does not answer may be missing as a node, and be there as a connection of this one.
        others = {*self.nodes, *own} - {index}
        return frozenset(o for o in others if self._connected(index, o) or self._connected(o, index))

    def _connected(self, source: int, target: int) -> bool:
        node = self.nodes.get(source)
        connection = node.connections.get(target) if node else None
        return connection is not None and connection.status == "CONNECTED"


class Reply(NamedTuple):
    output: bytes = b""
    problem: str = ""
    """Why there is no output, or what it wrote to stderr."""


class ImexCtl:
    def __init__(self, command: Sequence[str], *, timeout: float = 5.0) -> None:
        self._command = command
        self._timeout = timeout
        self._kept: dict[str, tuple[str, Reply]] = {}
        """By flags: when it answered last, and what."""

    def last_answers(self) -> str:
        """As at a prompt, one query after the other; empty before the first one."""
        return "\n".join(
            f"$ nvidia-imex-ctl {flags}  # {at}\n{_text(reply.output)}{_text(reply.problem.encode())}"
            for flags, (at, reply) in sorted(self._kept.items(), reverse=True)
        )

    async def state(self, config: Path) -> ImexState:
        """`config` is the configuration of the running nvidia-imex."""
        output = (await self._ask(config, "-q")).decode(errors="replace").strip()
        try:
            return ImexState(output)
        except ValueError:
            return ImexState.UNAVAILABLE

    async def domain(self, config: Path) -> DomainView | None:
        output = await self._ask(config, "-N", "-j")
        try:
            return msgspec.json.decode(output, type=DomainView)
        except (ValueError, RecursionError):  # msgspec's own errors, or invalid UTF-8
            return None

    async def own_index(self, config: Path) -> int | None:
        """Which entry of its nodes file nvidia-imex takes for itself. None if the answer does not tell: only the
        text of `-N` marks it, with asterisks around the address.
        """
        output = (await self._ask(config, "-N")).decode(errors="replace")
        marked = _OWN_NODE.findall(output)
        return int(marked[0]) if len(marked) == 1 else None

    async def _ask(self, config: Path, *flags: str) -> bytes:
        reply = await self._query(config, *flags)
        self._kept[" ".join(flags)] = rfc3339(Clock().now()), Reply(reply.output[:_MAX_KEPT], reply.problem)
        return reply.output

    async def _query(self, config: Path, *flags: str) -> Reply:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                "-c",
                str(config),
                *flags,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                process_group=0,
            )
        except OSError as error:
            log.error("nvidia-imex-ctl cannot be started", command=self._command[0], error=error.strerror)
            return Reply(problem=f"{self._command[0]} cannot be started: {error.strerror}")
        try:
            async with asyncio.timeout(self._timeout):
                output, errors = await process.communicate()
                return Reply(output, errors.decode(errors="replace")[:_MAX_ERRORS])
        except TimeoutError:
            return Reply(problem=f"no answer within {self._timeout:g} s")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def _text(output: bytes) -> str:
    text = output.decode(errors="replace").rstrip()
    return f"{text}\n" if text else ""
