"""`kubectl exec` on the wire: streams over one WebSocket, each message with its stream's number in front.

This is `v5.channel.k8s.io`: 0 to 2 are the command's streams, 3 tells its end as a Status, 4 the terminal's size;
255 says that a stream is closed. From Kubernetes 1.36 the API server hands kubectl's own connection on to nodes
that declare it, so nobody needs SPDY here.
"""

import asyncio
from asyncio import StreamReader
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Struct

from imex_dra.sandbox.kubelet.commands import Execution

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, SIZE, CLOSE = 0, 1, 2, 3, 4, 255
_CHUNK = 32 * 1024

Json = dict[str, Any]


class _Size(Struct, rename="pascal"):
    width: int
    height: int


def status_of_end(code: int) -> Json:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def status_of_failure(words: str) -> Json:
    why = f"error executing command in container: {words}"
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "InternalError",
        "message": f"Internal error occurred: {why}",
        "details": {"causes": [{"message": why}]},
        "code": 500,
    }


async def serve(socket: web.WebSocketResponse, execution: Execution) -> None:
    """Until the command ends. If the caller goes before that, the command is killed."""
    try:
        async with asyncio.TaskGroup() as group:
            hearing = group.create_task(_hear(socket, execution))
            with suppress(ConnectionError):
                await _tell(socket, execution)
            hearing.cancel()
    finally:
        execution.end()


async def tell_status(socket: web.WebSocketResponse, status: Json) -> None:
    await socket.send_bytes(bytes([STATUS]) + msgspec.json.encode(status))


async def _tell(socket: web.WebSocketResponse, execution: Execution) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_pump(socket, STDOUT, execution.out))
        if execution.err is not None:
            group.create_task(_pump(socket, STDERR, execution.err))
    await tell_status(socket, status_of_end(await execution.wait()))


async def _pump(socket: web.WebSocketResponse, stream: int, source: StreamReader) -> None:
    """A terminal whose other side is closed gives an error instead of an end."""
    with suppress(OSError):
        while data := await source.read(_CHUNK):
            await socket.send_bytes(bytes([stream]) + data)


async def _hear(socket: web.WebSocketResponse, execution: Execution) -> None:
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data:
            await _take(message.data[0], message.data[1:], execution)
    execution.end()


async def _take(stream: int, data: bytes, execution: Execution) -> None:
    if stream == STDIN:
        await execution.feed(data)
    elif stream == CLOSE and data[:1] == bytes([STDIN]):
        execution.close_stdin()
    elif stream == SIZE:
        with suppress(msgspec.MsgspecError):
            size = msgspec.json.decode(data, type=_Size)
            execution.resize(size.width, size.height)
