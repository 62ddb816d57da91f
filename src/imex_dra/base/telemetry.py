"""What a program shows of itself over HTTP: `/metrics`, `/livez`, `/readyz`, and pages of its own for people.

`/livez` fails only if a restart of the program can help. `/readyz` says with reasons what the program still waits
for. Both list their checks as the API server does, one a line.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from imex_dra.base.errors import Misconfigured
from imex_dra.base.httpserver import Handler, HttpServer, Response
from imex_dra.base.metrics import CONTENT_TYPE, Metrics

Check = Callable[[], Awaitable[str]]
"""The problem in one sentence; empty if there is none."""


class Telemetry:
    """`constant`: labels that all metrics of the program have."""

    def __init__(self, **constant: str) -> None:
        self.metrics = Metrics(**constant)
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}
        self._notices: dict[str, Check] = {}
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "/metrics"): self._scrape,
            ("GET", "/livez"): self._livez,
            ("GET", "/readyz"): self._readyz,
        }
        self.server = HttpServer(self._routes)

    def live(self, name: str, check: Check) -> AbstractContextManager[None]:
        return _entry(self._live, name, check)

    def ready(self, name: str, check: Check) -> AbstractContextManager[None]:
        return _entry(self._ready, name, check)

    def notice(self, name: str, check: Check) -> AbstractContextManager[None]:
        """What `/readyz` says of a problem with which the program still works."""
        return _entry(self._notices, name, check)

    @contextmanager
    def page(self, path: str, text: Callable[[], str]) -> Iterator[None]:
        """Plain text on a path of its own, until the end of the context."""

        async def answer(body: bytes) -> Response:
            return Response(200, text().encode())

        self._routes["GET", path] = answer
        try:
            yield
        finally:
            self._routes.pop(("GET", path), None)

    async def run(self, address: str) -> None:
        """Serves until cancelled; returns at once if there is no address."""
        if address:
            await self.server.run(*parse_address(address))

    async def _scrape(self, body: bytes) -> Response:
        return Response(200, self.metrics.text().encode(), CONTENT_TYPE)

    async def _livez(self, body: bytes) -> Response:
        return await _verdict(self._live)

    async def _readyz(self, body: bytes) -> Response:
        return await _verdict({**self._live, **self._ready}, self._notices)


async def observed(telemetry: Telemetry, address: str, program: Coroutine[Any, Any, None]) -> None:
    """Runs the program, and serves its telemetry until it ends, however it ends."""
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(telemetry.run(address))
        try:
            await program
        finally:
            serving.cancel()


@contextmanager
def _entry(checks: dict[str, Check], name: str, check: Check) -> Iterator[None]:
    """The check counts until the end of the context."""
    checks[name] = check
    try:
        yield
    finally:
        checks.pop(name, None)


async def _verdict(checks: dict[str, Check], notices: dict[str, Check] | None = None) -> Response:
    problems = {name: await check() for name, check in checks.items()}
    noticed = {name: await check() for name, check in (notices or {}).items()}
    lines = [f"[-]{name}: {problem}" if problem else f"[+]{name} ok" for name, problem in problems.items()]
    lines += [f"[!]{name}: {text}" for name, text in noticed.items() if text]
    failed = any(problems.values())
    return Response(503 if failed else 200, "\n".join([*lines, "failed" if failed else "ok", ""]).encode())


def parse_address(address: str) -> tuple[str | None, int]:
    """`host:port`; without a host all addresses. An IPv6 address is in brackets."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise Misconfigured(f"{address!r} is no address to listen on: use HOST:PORT or :PORT")
    return host.removeprefix("[").removesuffix("]") or None, int(port)
