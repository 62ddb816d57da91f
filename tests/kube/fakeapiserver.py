"""An in-memory API server behind the real HTTP client, for tests in virtual time.

It implements what Leases and Events need: create, get, and merge patch with a resourceVersion. Everything else is
tested on a real API server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import msgspec

from imex_dra.kube.client import Client

Hook = Callable[[], Awaitable[None]]


async def no_hook() -> None:
    pass


class FakeApiServer:
    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.writes = 0

    def client(self, component: str, before: Hook = no_hook, after: Hook = no_hook) -> Client:
        """`before` runs before a request is processed, `after` before its response is returned; both may raise."""

        async def handle(request: httpx2.Request) -> httpx2.Response:
            await before()
            response = self.respond(request)
            await after()
            return response

        transport = httpx2.MockTransport(handle)
        headers = {"User-Agent": f"{component}/0"}
        return Client(httpx2.AsyncClient(transport=transport, base_url="http://fake", headers=headers))

    def respond(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        body = msgspec.json.decode(request.content) if request.content else {}
        if request.method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                return self.error(409, "AlreadyExists")
            return self.store(path, body)
        live = self.objects.get(path)
        if live is None:
            return self.error(404, "NotFound")
        if request.method == "GET":
            return httpx2.Response(200, json=live)
        expected = body.get("metadata", {}).get("resourceVersion", live["metadata"]["resourceVersion"])
        if expected != live["metadata"]["resourceVersion"]:
            return self.error(409, "Conflict")
        return self.store(path, apply_merge_patch(live, body))

    def store(self, path: str, obj: dict[str, Any]) -> httpx2.Response:
        self.version += 1
        self.writes += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        self.objects[path] = {**obj, "metadata": metadata}
        return httpx2.Response(200, json=self.objects[path])

    @staticmethod
    def error(code: int, reason: str) -> httpx2.Response:
        return httpx2.Response(code, json={"code": code, "reason": reason, "message": reason})


def apply_merge_patch(live: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    base = dict(live) if isinstance(live, dict) else {}
    for name, value in patch.items():
        if value is None:
            base.pop(name, None)
        else:
            base[name] = apply_merge_patch(base.get(name), value)
    return base


async def hang() -> None:
    await asyncio.get_running_loop().create_future()
