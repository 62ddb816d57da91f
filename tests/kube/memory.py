"""A few objects behind the real HTTP client, without a socket: for tests in virtual time only.

It knows what a Lease and an Event need (create, get, merge patch against a resourceVersion) and nothing else;
everything about real API servers is tested on a real API server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import msgspec

from imex_dra.kube.client import Client

Delay = Callable[[], Awaitable[None]]


async def no_delay() -> None:
    pass


class Memory:
    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.writes = 0

    def client(self, component: str, before: Delay = no_delay, after: Delay = no_delay) -> Client:
        """`before` runs on the request's way in, `after` on the answer's way back; either may raise."""

        async def handle(request: httpx2.Request) -> httpx2.Response:
            await before()
            response = self.answer(request)
            await after()
            return response

        transport = httpx2.MockTransport(handle)
        headers = {"User-Agent": f"{component}/0"}
        return Client(httpx2.AsyncClient(transport=transport, base_url="http://memory", headers=headers))

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        body = msgspec.json.decode(request.content) if request.content else {}
        if request.method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                return self.refuse(409, "AlreadyExists")
            return self.store(path, body)
        live = self.objects.get(path)
        if live is None:
            return self.refuse(404, "NotFound")
        if request.method == "GET":
            return httpx2.Response(200, json=live)
        wanted = body.get("metadata", {}).get("resourceVersion", live["metadata"]["resourceVersion"])
        if wanted != live["metadata"]["resourceVersion"]:
            return self.refuse(409, "Conflict")
        return self.store(path, merged(live, body))

    def store(self, path: str, obj: dict[str, Any]) -> httpx2.Response:
        self.version += 1
        self.writes += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        self.objects[path] = {**obj, "metadata": metadata}
        return httpx2.Response(200, json=self.objects[path])

    @staticmethod
    def refuse(code: int, reason: str) -> httpx2.Response:
        return httpx2.Response(code, json={"code": code, "reason": reason, "message": reason})


def merged(live: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    base = dict(live) if isinstance(live, dict) else {}
    for name, value in patch.items():
        if value is None:
            base.pop(name, None)
        else:
            base[name] = merged(base.get(name), value)
    return base


async def hang() -> None:
    await asyncio.get_running_loop().create_future()
