"""The same requests, on a real API server first, then on the embedded API."""

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from imex_dra.base.clock import Clock
from imex_dra.kube.connection import connect
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.storage import Storage
from imex_sandbox.simulation.network import Link, Transport

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class Api:
    """Requests as a client sends them."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"

    async def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: str
    ) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body).encode()
        response = await self._http.request(
            method, path, params=query, content=content, headers={"Content-Type": content_type}
        )
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return response.status_code, response.json() if is_json else response.text

    async def watch(self, path: str, count: int, **query: str) -> list[dict[str, Any]]:
        """The first events; fails if there are not that many within a minute."""
        events: list[dict[str, Any]] = []
        async with asyncio.timeout(60.0):
            async with self._http.stream("GET", path, params={"watch": "1", **query}) as response:
                if response.is_error:
                    await response.aread()
                    return [{"type": "HTTP", "object": response.json()}]
                async for line in response.aiter_lines():
                    events.append(json.loads(line))
                    if len(events) == count:
                        return events
        return events

    def path(self, plural: str, name: str = "", *, group: str = "coordination.k8s.io/v1") -> str:
        parts = ["", "apis", group, "namespaces", self.namespace, plural, name]
        return "/".join(parts).rstrip("/")


@pytest.fixture(params=[pytest.param("kubernetes", marks=pytest.mark.kube), "embedded"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    if request.param == "kubernetes":
        control_plane = request.getfixturevalue("control_plane")
        http = connect("imex-test", control_plane.kubeconfig())
    else:
        objects = Objects(Storage(), now=Clock().now, new_uid=lambda: str(uuid.uuid4()))
        transport = Transport(objects, Link(random.Random(), latency=0.0))
        http = httpx2.AsyncClient(
            transport=transport, base_url="http://embedded", headers={"User-Agent": "imex-test/1"}
        )
    async with http:
        running = Api(http)
        await running.request("POST", "/api/v1/namespaces", {"metadata": {"name": running.namespace}})
        yield running
