"""What `/livez` and `/readyz` answer, and where a program listens."""

import asyncio

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.base.telemetry import Check, Telemetry, parse_address


def returns(problem: str) -> Check:
    async def check() -> str:
        return problem

    return check


async def get(telemetry: Telemetry, path: str) -> tuple[int, str]:
    async with telemetry.server.listening("127.0.0.1", 0):
        assert telemetry.server.address is not None
        reader, writer = await asyncio.open_connection(*telemetry.server.address)
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        return int(head.split()[1]), body


async def test_a_program_without_checks_is_live_and_ready() -> None:
    assert await get(Telemetry(), "/livez") == (200, "ok\n")
    assert await get(Telemetry(), "/readyz") == (200, "ok\n")


async def test_readiness_includes_liveness_and_says_what_is_missing() -> None:
    telemetry = Telemetry()
    with telemetry.live("socket", returns("")), telemetry.ready("kubelet", returns("not registered")):
        assert await get(telemetry, "/livez") == (200, "[+]socket ok\nok\n")
        assert await get(telemetry, "/readyz") == (503, "[+]socket ok\n[-]kubelet: not registered\nfailed\n")
    assert await get(telemetry, "/readyz") == (200, "ok\n")


async def test_a_notice_is_shown_and_the_program_stays_ready() -> None:
    telemetry = Telemetry()
    with telemetry.notice("files", returns("were replaced")), telemetry.notice("nothing", returns("")):
        assert await get(telemetry, "/livez") == (200, "ok\n")
        assert await get(telemetry, "/readyz") == (200, "[!]files: were replaced\nok\n")


async def test_a_liveness_check_that_fails_is_shown() -> None:
    telemetry = Telemetry()
    with telemetry.live("socket", returns("was removed")):
        assert await get(telemetry, "/livez") == (503, "[-]socket: was removed\nfailed\n")


async def test_a_page_is_shown_while_its_context_lasts() -> None:
    telemetry = Telemetry()
    with telemetry.page("/imex", lambda: "READY\n"):
        assert await get(telemetry, "/imex") == (200, "READY\n")
    assert await get(telemetry, "/imex") == (404, "Not Found\n")


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [(":8080", None, 8080), ("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:8081", "::1", 8081)],
)
def test_addresses(address: str, host: str | None, port: int) -> None:
    assert parse_address(address) == (host, port)


@pytest.mark.parametrize("address", ["8080x", "host:", "host", ":65536", ":-1"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(Misconfigured, match="use HOST:PORT or :PORT"):
        parse_address(address)
