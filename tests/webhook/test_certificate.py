"""The certificate of the webhook, over real handshakes: the last pair that could be used is served."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from imex_dra.base.httpserver import HttpServer
from imex_dra.controller.issuing import KeyPair, Request, issue
from imex_dra.webhook.program import Certificate


async def issued() -> KeyPair:
    now = datetime.now(UTC)
    return await issue(Request(now, now + timedelta(days=9)))


def write(directory: Path, certificate: str, key: str) -> None:
    (directory / "tls.crt").write_text(certificate)
    (directory / "tls.key").write_text(key)


async def served(certificate: Certificate) -> str:
    """The certificate that a client receives."""
    server = HttpServer({})
    async with server.listening("127.0.0.1", 0, tls=certificate.context):
        assert server.address is not None
        return await asyncio.to_thread(ssl.get_server_certificate, server.address)


@pytest.mark.parametrize("broken", ["another certificate", "another key", "no certificate"])
async def test_the_former_pair_is_served_while_the_files_cannot_be_used(tmp_path: Path, broken: str) -> None:
    first, second = await issued(), await issued()
    write(tmp_path, first.certificate, first.key)
    certificate = Certificate(tmp_path)
    certificate.reload()
    assert (certificate.problem, certificate.notice) == ("", "")
    match broken:
        case "another certificate":
            write(tmp_path, second.certificate, first.key)
        case "another key":
            write(tmp_path, first.certificate, second.key)
        case _:
            write(tmp_path, "", first.key)
    for _ in range(2):
        certificate.reload()
        assert await served(certificate) == first.certificate
        # It still works, so it stays ready.
        assert certificate.problem == ""
        assert "cannot be used" in certificate.notice

    write(tmp_path, first.certificate, first.key)
    certificate.reload()
    assert await served(certificate) == first.certificate
    assert certificate.notice == ""
    write(tmp_path, second.certificate, second.key)
    certificate.reload()
    assert await served(certificate) == second.certificate
    assert certificate.notice == ""


async def test_without_a_usable_pair_it_is_not_ready(tmp_path: Path) -> None:
    first, second = await issued(), await issued()
    certificate = Certificate(tmp_path)
    assert certificate.problem
    write(tmp_path, first.certificate, second.key)
    certificate.reload()
    assert "cannot be used" in certificate.problem
    write(tmp_path, first.certificate, first.key)
    certificate.reload()
    assert certificate.problem == ""
    assert await served(certificate) == first.certificate
