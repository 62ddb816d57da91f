"""The HTTP server, over real connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from imex_dra.base.httpserver import HttpServer, Response


async def hello(body: bytes) -> Response:
    return Response(200, b"hello " + body)


async def fail(body: bytes) -> Response:
    raise RuntimeError("on purpose")


async def hang(body: bytes) -> Response:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


ROUTES = {("GET", "/"): hello, ("POST", "/echo"): hello, ("GET", "/fail"): fail, ("GET", "/hang"): hang}


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    async with listening(time_limit=60) as running:
        yield running


@asynccontextmanager
async def listening(time_limit: float) -> AsyncIterator[HttpServer]:
    server = HttpServer(ROUTES, max_body=100, time_limit=time_limit)
    async with server.listening("127.0.0.1", 0):
        yield server


async def send(server: HttpServer, data: bytes) -> bytes:
    """All that the server answers until it closes the connection."""
    assert server.address is not None
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(data)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: test", *headers, "", ""]).encode() + body


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("GET /"), 200),
        (request("GET /?verbose=1"), 200),
        (request("GET /other"), 404),
        (request("DELETE /"), 405),
        (request("GET /fail"), 500),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (request("POST /echo", "Transfer-Encoding: chunked"), 400),
        (request("POST /echo", "Content-Length: -1"), 400),
        (request("POST /echo", "Content-Length: 101"), 413),
        (request("POST /echo", f"Content-Length: {'9' * 5000}"), 413),
        (request("GET /", "X-Large: " + "x" * 20_000), 431),
    ],
)
async def test_every_request_gets_a_status(server: HttpServer, sent: bytes, status: int) -> None:
    assert (await send(server, sent)).startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_body_is_read_to_its_end(server: HttpServer) -> None:
    answer = await send(server, request("POST /echo", "Content-Length: 5", body=b"world"))
    assert answer.endswith(b"\r\n\r\nhello world")


async def test_requests_are_answered_at_the_same_time(server: HttpServer) -> None:
    answers = await asyncio.gather(*(send(server, request("GET /")) for _ in range(100)))
    assert all(answer.endswith(b"hello ") for answer in answers)


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTT", request("GET /hang"), request("POST /echo", "Content-Length: 5")]
)
async def test_a_request_that_takes_too_long_is_dropped(sent: bytes) -> None:
    async with listening(time_limit=0.2) as server:
        assert await send(server, sent) == b""
        assert (await send(server, request("GET /"))).startswith(b"HTTP/1.1 200 ")


async def test_clients_that_hold_connections_keep_nobody_else_out(server: HttpServer) -> None:
    """As many as it serves at a time: then the one that waits longest is closed for a new one, such as a probe."""
    assert server.address is not None
    async with AsyncExitStack() as stack:
        held = []
        for _ in range(300):
            reader, writer = await asyncio.open_connection(*server.address)
            stack.callback(writer.close)
            held.append(reader)
        assert (await send(server, request("GET /"))).startswith(b"HTTP/1.1 200 ")
        with suppress(ConnectionResetError):
            assert await held[0].read() == b""
        writer.write(request("GET /"))
        assert (await held[-1].read()).startswith(b"HTTP/1.1 200 ")


async def test_a_request_that_is_being_answered_is_not_closed_for_a_new_one(server: HttpServer) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(body: bytes) -> Response:
        asked.set()
        await answer.wait()
        return Response(200, b"slow")

    server.routes = {**ROUTES, ("GET", "/slow"): slow}
    assert server.address is not None
    first = asyncio.create_task(send(server, request("GET /slow")))
    await asked.wait()
    async with AsyncExitStack() as stack:
        for _ in range(300):
            _, writer = await asyncio.open_connection(*server.address)
            stack.callback(writer.close)
        assert (await send(server, request("GET /"))).startswith(b"HTTP/1.1 200 ")
        answer.set()
        assert (await first).endswith(b"slow")


async def test_an_address_in_use_is_waited_for(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imex_dra.base.httpserver._BIND_PERIOD", 0.01)
    assert server.address is not None
    port = server.address[1]
    second = HttpServer(ROUTES)
    task = asyncio.create_task(second.run("127.0.0.1", port))
    await asyncio.sleep(0.1)
    assert second.address is None
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})
