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
from imex_sandbox.simulation.network import Link, SimulatedHttp

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class Api:
    """Requests as a client sends them."""

    def __init__(self, http: httpx2.AsyncClient | SimulatedHttp) -> None:
        self._http: Any = http
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"

    async def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: str
    ) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type}
        request = self._http.build_request(method, path, params=query, content=content, headers=headers)
        response = await self._http.send(request)
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return response.status_code, json.loads(response.content) if is_json else response.content.decode()

    async def watch(self, path: str, count: int, **query: str) -> list[dict[str, Any]]:
        """The first events; fails if there are not that many within a minute."""
        events: list[dict[str, Any]] = []
        request = self._http.build_request("GET", path, params={"watch": "1", **query})
        async with asyncio.timeout(60.0):
            response = await self._http.send(request, stream=True)
            try:
                if response.is_error:
                    return [{"type": "HTTP", "object": json.loads(await response.aread())}]
                rest = b""
                async for chunk in response.aiter_bytes():
                    *lines, rest = (rest + chunk).split(b"\n")
                    events += [json.loads(line) for line in lines]
                    if len(events) >= count:
                        return events[:count]
            finally:
                await response.aclose()
        return events

    def path(self, plural: str, name: str = "", *, group: str = "coordination.k8s.io/v1") -> str:
        parts = ["", "apis", group, "namespaces", self.namespace, plural, name]
        return "/".join(parts).rstrip("/")


@pytest.fixture(params=[pytest.param("kubernetes", marks=pytest.mark.kube), "embedded"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    if request.param == "kubernetes":
        control_plane = request.getfixturevalue("control_plane")
        http: httpx2.AsyncClient | SimulatedHttp = connect("imex-test", control_plane.kubeconfig())
    else:
        objects = Objects(Storage(), now=Clock().now, new_uid=lambda: str(uuid.uuid4()))
        http = SimulatedHttp("imex-test", objects, Link(random.Random(), latency=0.0))
    running = Api(http)
    await running.request("POST", "/api/v1/namespaces", {"metadata": {"name": running.namespace}})
    yield running
    await http.aclose()
