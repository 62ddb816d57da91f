import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from imex_sandbox.kubernetes.relay import Address, relay


async def upper_case(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.read()).upper())
    writer.close()


@asynccontextmanager
async def relayed(target: Address) -> AsyncIterator[Address]:
    listening = socket.create_server(("127.0.0.1", 0))
    task = asyncio.create_task(relay([listening], target))
    try:
        yield listening.getsockname()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def exchange(address: Address, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    writer.write_eof()
    response = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return response


async def test_data_and_end_of_stream_are_relayed_in_both_directions() -> None:
    server = await asyncio.start_server(upper_case, "127.0.0.1", 0)
    async with server, relayed(server.sockets[0].getsockname()) as address:
        assert await exchange(address, b"x" * 1_000_000) == b"X" * 1_000_000


async def test_the_connection_is_closed_if_the_target_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        unused = closed.getsockname()
    async with relayed(unused) as address:
        assert await exchange(address, b"") == b""
