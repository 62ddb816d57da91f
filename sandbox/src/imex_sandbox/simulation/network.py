"""The way from a program to the API: latency, failures and cuts, all drawn from the seed.

`SimulatedHttp` stands for the HTTP library below our `Client`, which runs on it with its retries, time limits and
errors. A request can be lost before the API processes it, or its response afterwards: the client cannot tell. A
request can also be processed after the client has given up, or after the program that sent it was killed.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import httpx2

from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.requests import Request, Response, answer
from imex_sandbox.embedded.watches import Watch

_TIME_LIMIT = 10.0
_LONGEST_STALL = 40.0
_HOST = "api.simulation"


@dataclass
class ApiServer:
    """What all connections depend on."""

    is_down: bool = False
    watches: dict["WatchStream", None] = field(default_factory=dict)
    """In the order in which they began."""

    def end_watches(self) -> None:
        """As a restart of the API server does."""
        for stream in list(self.watches):
            stream.close()


@dataclass
class Link:
    """The connection of one program. Faults change it while the program runs."""

    chance: random.Random
    server: ApiServer = field(default_factory=ApiServer)
    latency: float = 0.002
    """Mean seconds for one direction."""
    failures: float = 0.0
    """Share of requests that fail: before the API has processed them, afterwards, or by coming too late."""
    stragglers: float = 0.0
    """Share of responses that come late: what they say may be outdated by then."""
    watch_lag: float = 0.0
    """Seconds by which a watch lags at most: what a program knows from it is outdated, what it reads is not."""
    watch_factor: float = 1.0
    """How many times longer than the client asks for a watch lives. In a simulated day reconnects would be most of
    the work."""
    cut: bool = False
    """Nothing gets through; requests and watches run into their time limits."""
    crashed: bool = False
    """The program is dead: what it had sent may still arrive, but it learns nothing any more."""
    outside: Context = field(default_factory=Context)
    """What happens on the way does not happen inside the program."""

    @property
    def is_cut(self) -> bool:
        return self.cut or self.server.is_down

    def reset(self, field: str) -> None:
        """Ends one fault; others may go on."""
        setattr(self, field, getattr(Link, field))

    def delay(self) -> float:
        return self.latency * (0.2 + 1.6 * self.chance.random())

    def lag(self) -> float:
        return self.watch_lag * self.chance.random() if self.watch_lag else 0.0


class Url(NamedTuple):
    host: str
    path: str


class HttpRequest(NamedTuple):
    method: str
    url: Url
    query: dict[str, str]
    content: bytes
    content_type: str
    inactivity: float


class HttpResponse:
    def __init__(
        self, code: int, content: bytes = b"", retry_after: str = "", stream: "WatchStream | None" = None
    ):
        self.status_code = code
        self.content = content
        self.headers = {"Content-Type": "application/json", "Retry-After": retry_after}
        if not retry_after:
            del self.headers["Retry-After"]
        self._stream = stream

    @property
    def is_error(self) -> bool:
        return self.status_code >= 400

    async def aread(self) -> bytes:
        return self.content

    def aiter_bytes(self) -> AsyncIterator[bytes]:
        assert self._stream is not None
        return self._stream.batches()

    async def aclose(self) -> None:
        if self._stream is not None:
            self._stream.close()


class SimulatedHttp:
    """The part of `httpx2.AsyncClient` that `Client` uses."""

    def __init__(self, component: str, objects: Objects, link: Link) -> None:
        self.headers = {"User-Agent": f"{component}/simulated"}
        self._objects = objects
        self._link = link

    def build_request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
    ) -> HttpRequest:
        inactivity = timeout.read if timeout is not None and timeout.read is not None else _TIME_LIMIT
        content_type = (headers or {}).get("Content-Type", "")
        return HttpRequest(method, Url(_HOST, path), params or {}, content or b"", content_type, inactivity)

    async def send(self, request: HttpRequest, *, stream: bool = False) -> HttpResponse:
        link = self._link
        if link.crashed:
            raise httpx2.ConnectError("the program is dead")
        if link.is_cut:
            await asyncio.sleep(_TIME_LIMIT)
            raise httpx2.ConnectTimeout("the network is cut")
        response: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self._later(link.delay(), self._arrive, request, response)
        return await response

    async def aclose(self) -> None:
        pass

    def _later(self, delay: float, callback: Any, *args: Any) -> None:
        asyncio.get_running_loop().call_later(delay, callback, *args, context=self._link.outside)

    def _arrive(self, request: HttpRequest, response: "asyncio.Future[HttpResponse]") -> None:
        link = self._link
        if link.is_cut:
            self._give_up(response)
        elif link.failures and link.chance.random() < link.failures:
            self._fail(request, response)
        else:
            late = bool(link.stragglers) and link.chance.random() < link.stragglers
            delay = 0.99 * _TIME_LIMIT * link.chance.random() if late else link.delay()
            self._later(delay, self._return, self._process(request), response)

    def _fail(self, request: HttpRequest, response: "asyncio.Future[HttpResponse]") -> None:
        link = self._link
        match link.chance.choice(("refused", "refused", "reset", "reset", "stalled")):
            case "refused":
                code = link.chance.choice((429, 500, 503))
                body = b'{"kind":"Status","code":%d,"reason":"Injected","message":"injected"}' % code
                self._later(link.delay(), self._return, HttpResponse(code, body, retry_after="1"), response)
            case "reset":
                _close(self._process(request))
                lost = httpx2.RemoteProtocolError("the connection was reset after the request")
                self._later(link.delay(), _raise, lost, response)
            case _:
                self._give_up(response)
                stall = _LONGEST_STALL * link.chance.random()
                self._later(stall, lambda: _close(self._process(request)))

    def _give_up(self, response: "asyncio.Future[HttpResponse]") -> None:
        self._later(_TIME_LIMIT, _raise, httpx2.ReadTimeout("no response in time"), response)

    def _process(self, request: HttpRequest) -> HttpResponse:
        agent = self.headers["User-Agent"]
        content = (request.content_type, request.content, agent)
        answered = answer(self._objects, Request(request.method, request.url.path, request.query, *content))
        if isinstance(answered, Response):
            return HttpResponse(answered.code, answered.body)
        lifetime = float(request.query.get("timeoutSeconds", "300"))
        stream = WatchStream(answered, self._link, lifetime, inactivity=request.inactivity)
        return HttpResponse(200, stream=stream)

    def _return(self, answered: HttpResponse, response: "asyncio.Future[HttpResponse]") -> None:
        if self._link.is_cut and not response.done():
            _close(answered)
            self._give_up(response)
        elif response.done():
            _close(answered)
        else:
            response.set_result(answered)


class WatchStream:
    def __init__(self, watch: Watch, link: Link, lifetime: float, *, inactivity: float) -> None:
        self._watch = watch
        self._link = link
        self._ends = asyncio.get_running_loop().time() + link.watch_factor * lifetime
        self._inactivity = inactivity
        link.server.watches[self] = None

    async def batches(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while (remaining := self._ends - loop.time()) > 0:
            batch = await self._watch.lines(remaining)
            if batch is None:
                return
            if self._link.is_cut:
                await self._wait_while_cut()
            if batch:
                await asyncio.sleep(self._link.delay() + self._link.lag())
                yield batch

    async def _wait_while_cut(self) -> None:
        """TCP delivers late what was sent during a short cut; after `inactivity` the client gives up."""
        loop = asyncio.get_running_loop()
        gives_up = loop.time() + self._inactivity
        while self._link.is_cut:
            if loop.time() >= gives_up:
                raise httpx2.ReadTimeout("the network is cut")
            await asyncio.sleep(5.0)

    def close(self) -> None:
        self._link.server.watches.pop(self, None)
        self._watch.close()


def client_of(component: str, objects: Objects, link: Link) -> Client:
    http = cast("httpx2.AsyncClient", SimulatedHttp(component, objects, link))
    return Client(http, backoff=Backoff(0.1, 2.0, jitter=link.chance.random))


def _close(response: HttpResponse) -> None:
    """A watch that no client reads."""
    if response._stream is not None:
        response._stream.close()


def _raise(error: Exception, response: "asyncio.Future[HttpResponse]") -> None:
    if not response.done():
        response.set_exception(error)
