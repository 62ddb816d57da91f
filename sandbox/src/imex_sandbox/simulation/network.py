"""The way from a program to the API: latency, failures and partitions, all drawn from the seed.

It is a transport of the HTTP client, so that the real `Client` runs on it, with its retries, time limits and
errors. A request can be lost before the API processes it, or its response afterwards: the client cannot tell.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2

from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.requests import Request, Response, answer
from imex_sandbox.embedded.watches import Watch

_LATENCY = 0.002


@dataclass
class Link:
    """The connection of one program. Faults change it while the program runs."""

    chance: random.Random
    latency: float = _LATENCY
    """Mean seconds for one direction."""
    failures: float = 0.0
    """Share of requests that fail: half of them before the API has processed them, half of them afterwards."""
    watch_factor: float = 1.0
    """How many times longer than the client asks for a watch lives. In a simulated day reconnects would be most of
    the work."""
    is_cut: bool = False
    """Nothing gets through; requests and watches run into their time limits."""
    crashed: bool = False
    """The program is dead: what it had sent may still arrive, but it learns nothing any more."""

    def repair(self) -> None:
        self.latency, self.failures = _LATENCY, 0.0

    async def travel(self) -> None:
        await asyncio.sleep(self.latency * (0.2 + 1.6 * self.chance.random()))


class Transport(httpx2.AsyncBaseTransport):
    def __init__(self, objects: Objects, link: Link) -> None:
        self._objects = objects
        self._link = link

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        limits = request.extensions["timeout"]
        if self._link.crashed:
            raise httpx2.ConnectError("the program is dead", request=request)
        fails = self._link.chance.random() < self._link.failures
        await self._link.travel()
        if self._link.is_cut:
            await asyncio.sleep(limits["connect"])
            raise httpx2.ConnectTimeout("the network is cut", request=request)
        if fails and self._link.chance.random() < 0.5:
            return self._failure(request)
        answered = answer(self._objects, _request(request, await request.aread()))
        await self._link.travel()
        if isinstance(answered, Watch):
            lifetime = float(request.url.params.get("timeoutSeconds", "300"))
            stream = WatchStream(answered, self._link, lifetime, inactivity=limits["read"])
            return httpx2.Response(200, stream=stream, request=request)
        if self._link.is_cut:
            await asyncio.sleep(limits["read"])
            raise httpx2.ReadTimeout("the response was lost", request=request)
        if fails:
            raise httpx2.RemoteProtocolError("the connection was reset after the request", request=request)
        return _response(answered, request)

    def _failure(self, request: httpx2.Request) -> httpx2.Response:
        code = self._link.chance.choice((429, 500, 503))
        body = b'{"kind":"Status","code":%d,"reason":"Injected","message":"injected"}' % code
        return httpx2.Response(code, content=body, headers={"Retry-After": "1"}, request=request)


class WatchStream(httpx2.AsyncByteStream):
    def __init__(self, watch: Watch, link: Link, lifetime: float, *, inactivity: float) -> None:
        self._watch = watch
        self._link = link
        self._ends = asyncio.get_running_loop().time() + link.watch_factor * lifetime
        self._inactivity = inactivity

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while (remaining := self._ends - loop.time()) > 0:
            batch = await self._watch.lines(remaining)
            if batch is None:
                return
            if self._link.is_cut:
                await self._wait_while_cut()
            await self._link.travel()
            if batch:
                yield batch

    async def _wait_while_cut(self) -> None:
        """TCP delivers late what was sent during a short cut; after `inactivity` the client gives up."""
        loop = asyncio.get_running_loop()
        gives_up = loop.time() + self._inactivity
        while self._link.is_cut:
            if loop.time() >= gives_up:
                raise httpx2.ReadTimeout("the network is cut")
            await asyncio.sleep(1.0)

    async def aclose(self) -> None:
        self._watch.close()


def client_of(component: str, objects: Objects, link: Link) -> Client:
    http = httpx2.AsyncClient(
        transport=Transport(objects, link),
        base_url="http://api.simulation",
        timeout=httpx2.Timeout(10),
        headers={"User-Agent": f"{component}/simulated"},
    )
    return Client(http, backoff=Backoff(0.1, 2.0, jitter=link.chance.random))


def _request(request: httpx2.Request, body: bytes) -> Request:
    return Request(
        request.method,
        request.url.path,
        dict(request.url.params),
        request.headers.get("Content-Type", ""),
        body,
        request.headers.get("User-Agent", ""),
    )


def _response(answered: Response, request: httpx2.Request) -> httpx2.Response:
    headers = {"Content-Type": "application/json"}
    return httpx2.Response(answered.code, content=answered.body, headers=headers, request=request)
