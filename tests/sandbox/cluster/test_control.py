"""The control protocol: one request and one reply over a Unix socket."""

import asyncio
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imex_dra.base.errors import Rejected, Unavailable
from imex_sandbox.control import Request, ask, ask_async, serving


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ic", dir="/tmp") as directory:
        yield Path(directory) / "control.sock"


async def handler(request: Request) -> Any:
    match request.action:
        case "echo":
            return [request.node, request.program, request.options]
        case "refuse":
            raise Rejected("not supported")
        case "sleep":
            await asyncio.sleep(600)
    raise ValueError("a bug")


async def ask_in_thread(path: Path, request: Request, **options: Any) -> Any:
    return await asyncio.to_thread(ask, path, request, **options)


@pytest.mark.parametrize("ask", [ask_in_thread, ask_async])
async def test_a_reply_has_the_result_or_the_error(path: Path, ask: Any) -> None:
    async with serving(path, handler):
        assert await ask(path, Request("echo", "n", "p", {"k": 1})) == ["n", "p", {"k": 1}]
        with pytest.raises(Rejected, match="not supported"):
            await ask(path, Request("refuse"))
        with pytest.raises(Rejected, match="unexpected ValueError: a bug"):
            await ask(path, Request("other"))
    with pytest.raises(Unavailable, match="no reply from"):
        await ask(path, Request("echo"))
    assert not path.exists()


@pytest.mark.parametrize("ask", [ask_in_thread, ask_async])
async def test_a_reply_that_takes_too_long_is_an_error(path: Path, ask: Any) -> None:
    async with serving(path, handler):
        with pytest.raises(Unavailable, match="timed out"):
            await ask(path, Request("sleep"), within=0.2)


@pytest.mark.parametrize("noise", [b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 5) + b"{oops", b"\0\0"])
async def test_malformed_input_does_not_affect_other_connections(path: Path, noise: bytes) -> None:
    async with serving(path, handler):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(noise)
        assert await ask_async(path, Request("echo")) == ["", "", {}]


async def test_only_the_owner_can_open_the_socket(path: Path) -> None:
    async with serving(path, handler):
        assert path.stat().st_mode & 0o777 == 0o600
