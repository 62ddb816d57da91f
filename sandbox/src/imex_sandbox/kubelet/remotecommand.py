"""The protocol of `kubectl exec`, `v5.channel.k8s.io`: streams multiplexed over one WebSocket.

Each message starts with the number of its stream. 0 to 2 are stdin, stdout and stderr; 3 carries the final
Status; 4 carries terminal sizes; 255 closes a stream. From Kubernetes 1.36 the API server passes kubectl's own
WebSocket on to nodes that declare support for it, so SPDY is not needed.
"""

import asyncio
from asyncio import StreamReader
from contextlib import suppress

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Struct

from imex_sandbox.kubelet.containerexec import ExecSession
from imex_sandbox.kubelet.podstate import Json

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_CHUNK = 32 * 1024


class _TerminalSize(Struct, rename="pascal"):
    width: int
    height: int


def exit_status(code: int) -> Json:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def failure_status(cause: str) -> Json:
    message = f"error executing command in container: {cause}"
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "InternalError",
        "message": f"Internal error occurred: {message}",
        "details": {"causes": [{"message": message}]},
        "code": 500,
    }


async def serve(socket: web.WebSocketResponse, session: ExecSession) -> None:
    """Returns when the command has exited. If the client disconnects before that, the command is killed."""
    try:
        async with asyncio.TaskGroup() as group:
            receiving = group.create_task(_receive(socket, session))
            with suppress(ConnectionError):
                await _send(socket, session)
            receiving.cancel()
    finally:
        session.close()


async def send_status(socket: web.WebSocketResponse, status: Json) -> None:
    await socket.send_bytes(bytes([STATUS]) + msgspec.json.encode(status))


async def _send(socket: web.WebSocketResponse, session: ExecSession) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_send_stream(socket, STDOUT, session.stdout))
        if session.stderr is not None:
            group.create_task(_send_stream(socket, STDERR, session.stderr))
    await send_status(socket, exit_status(await session.wait()))


async def _send_stream(socket: web.WebSocketResponse, number: int, source: StreamReader) -> None:
    # If the client has disconnected, `_receive` kills the command.
    with suppress(ConnectionError):
        while data := await source.read(_CHUNK):
            await socket.send_bytes(bytes([number]) + data)


async def _receive(socket: web.WebSocketResponse, session: ExecSession) -> None:
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data:
            await _handle(message.data[0], message.data[1:], session)
    session.close()


async def _handle(number: int, data: bytes, session: ExecSession) -> None:
    if number == STDIN:
        await session.write_stdin(data)
    elif number == CLOSE and data[:1] == bytes([STDIN]):
        session.close_stdin()
    elif number == RESIZE:
        with suppress(msgspec.MsgspecError):
            size = msgspec.json.decode(data, type=_TerminalSize)
            session.resize(size.width, size.height)
