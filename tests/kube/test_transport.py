"""What the HTTP transport does beyond httpx2."""

import asyncio
import gc
import ssl
from collections.abc import Iterator

import httpx2
import pytest

from imex_dra.kube.transport import Transport
from tests.waiting import until_async


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """It would close the socket, too."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
async def test_a_request_that_is_cancelled_in_its_tls_handshake_closes_its_connection() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read(1)
        began.set()
        await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, httpx2.AsyncClient(transport=Transport(verify=ssl.create_default_context())) as client:
        request = asyncio.create_task(client.get(f"https://{host}:{port}"))
        await until_async(began.is_set)
        request.cancel()
        await asyncio.wait({request})
        await until_async(ended.is_set, what="the end of the connection")
    assert request.cancelled()
