import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from imex_dra.sandbox.kubernetes.relay import Address, relay


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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


async def asked(address: Address, question: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(question)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


async def test_bytes_go_both_ways_and_ends_of_stream_too() -> None:
    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with server, relayed(server.sockets[0].getsockname()) as address:
        assert await asked(address, b"x" * 1_000_000) == b"X" * 1_000_000


async def test_a_target_that_is_down_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()
    async with relayed(nobody) as address:
        assert await asked(address, b"") == b""
