"""One request, one reply over a unix socket; who asks wrongly is told, and nobody else notices."""

import asyncio
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imex_dra.base.errors import Rejected, Unavailable
from imex_dra.sandbox.control import Request, ask, forward, serving


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ic", dir="/tmp") as directory:
        yield Path(directory) / "control.sock"


async def answer(request: Request) -> Any:
    match request.do:
        case "echo":
            return [request.node, request.program, request.options]
        case "refuse":
            raise Rejected("not today")
        case "sleep":
            await asyncio.sleep(600)
    raise ValueError("surprise")


async def asked(path: Path, request: Request, **options: Any) -> Any:
    return await asyncio.to_thread(ask, path, request, **options)


@pytest.mark.parametrize("way", [asked, forward])
async def test_a_reply_has_the_result_or_the_error(path: Path, way: Any) -> None:
    async with serving(path, answer):
        assert await way(path, Request("echo", "n", "p", {"k": 1})) == ["n", "p", {"k": 1}]
        with pytest.raises(Rejected, match="not today"):
            await way(path, Request("refuse"))
        with pytest.raises(Rejected, match="unexpected ValueError: surprise"):
            await way(path, Request("other"))
    with pytest.raises(Unavailable, match="nobody answers"):
        await way(path, Request("echo"))
    assert not path.exists()


@pytest.mark.parametrize("way", [asked, forward])
async def test_no_answer_in_time_is_an_error(path: Path, way: Any) -> None:
    async with serving(path, answer):
        with pytest.raises(Unavailable):
            await way(path, Request("sleep"), within=0.2)


@pytest.mark.parametrize("noise", [b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 5) + b"{oops", b"\0\0"])
async def test_noise_disturbs_nobody(path: Path, noise: bytes) -> None:
    async with serving(path, answer):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(path))
            line.sendall(noise)
        assert await forward(path, Request("echo")) == ["", "", {}]


async def test_it_is_for_its_owner_only(path: Path) -> None:
    async with serving(path, answer):
        assert path.stat().st_mode & 0o777 == 0o600
