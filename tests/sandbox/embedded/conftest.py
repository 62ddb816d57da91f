"""The same requests: on a real API server first, then on the embedded API in memory, then on it over HTTPS."""

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from imex_dra.base.clock import Clock
from imex_dra.kube.connection import connect
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.storage import Storage
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.embedded import EmbeddedControlPlane
from imex_sandbox.simulation.network import Link, SimulatedHttp

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


class Api:
    """Requests as a client sends them."""

    def __init__(self, http: httpx2.AsyncClient | SimulatedHttp, *, is_real: bool = False) -> None:
        self._http: Any = http
        self.is_real = is_real
        """Whether it is Kubernetes, which supports everything."""
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        **query: str,
    ) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": accept}
        request = self._http.build_request(method, path, params=query, content=content, headers=headers)
        response = await self._http.send(request)
        while response.status_code == 429:  # a real API server that is not ready yet to serve a new CRD
            await asyncio.sleep(0.1)
            response = await self._http.send(request)
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return response.status_code, json.loads(response.content) if is_json else response.content.decode()

    async def until(self, path: str, code: int) -> None:
        """Until a read is answered like this; fails after a minute."""
        async with asyncio.timeout(60.0):
            while (await self.request("GET", path))[0] != code:
                await asyncio.sleep(0.1)

    async def until_that(self, path: str, condition: Callable[[Any], Any], **query: str) -> Any:
        """The object, when it is as expected; fails after a minute."""
        found: Any = None
        try:
            async with asyncio.timeout(60.0):
                while True:
                    code, found = await self.request("GET", path, **query)
                    if code == 200 and condition(found):
                        return found
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{path} is still not as expected: {found}") from None

    async def watch(self, path: str, count: int, accept: str = "", **query: str) -> list[dict[str, Any]]:
        """The first events; fails if there are not that many within a minute."""
        events: list[dict[str, Any]] = []
        headers = {"Accept": accept or "application/json"}
        request = self._http.build_request("GET", path, params={"watch": "1", **query}, headers=headers)
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
        parts = ["", "api", "v1"] if group == "v1" else ["", "apis", group]
        parts += ["namespaces", self.namespace, plural, name]
        return "/".join(parts).rstrip("/")


KUBERNETES = pytest.param("kubernetes", marks=pytest.mark.kube)
SLOW_KUBERNETES = pytest.param("kubernetes", marks=[pytest.mark.kube, pytest.mark.slow])
"""In `make test-kube` only: `make test` must stay quick."""


@pytest.fixture(params=[KUBERNETES, "memory", "embedded"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    """Of any kind: what holds for all objects."""
    if request.param == "memory":
        objects = Objects(Storage(), now=Clock().now, new_uid=lambda: str(uuid.uuid4()))
        running = Api(SimulatedHttp("imex-test", objects, Link(random.Random(), latency=0.0)))
        await running.request("POST", "/api/v1/namespaces", {"metadata": {"name": running.namespace}})
        yield running
        return
    async with connected(request, request.param) as running:
        yield running


@pytest.fixture(params=[SLOW_KUBERNETES, "embedded"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    """With what only servers do: schemas, defaults, tables, discovery."""
    async with connected(request, request.param) as running:
        yield running


@pytest.fixture
async def embedded(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    """What cannot be asked of a real API server."""
    async with connected(request, "embedded") as running:
        yield running


@pytest.fixture(scope="session")
def controlled_kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With scheduler and controllers. Nodes of tests have no kubelet, so they may be silent for long."""
    directory = tmp_path_factory.mktemp("controlled")
    with ControlPlane(directory, manager_flags=["--node-monitor-grace-period=1h"]) as running:
        yield running


@pytest.fixture(scope="session")
def controlled_embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedControlPlane]:
    with EmbeddedControlPlane(tmp_path_factory.mktemp("controlled")) as running:
        yield running


@pytest.fixture(params=[SLOW_KUBERNETES, "embedded"])
async def cluster_api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    """With controllers and a scheduler."""
    async with connected(request, f"controlled_{request.param}") as running:
        yield running


FIXTURES = {"kubernetes": "control_plane", "embedded": "embedded_control_plane"}


@asynccontextmanager
async def connected(request: pytest.FixtureRequest, name: str) -> AsyncIterator[Api]:
    control_plane: ControlPlane | EmbeddedControlPlane = request.getfixturevalue(FIXTURES.get(name, name))
    http = connect("imex-test", control_plane.kubeconfig())
    try:
        running = Api(http, is_real=isinstance(control_plane, ControlPlane))
        await running.request("POST", "/api/v1/namespaces", {"metadata": {"name": running.namespace}})
        yield running
    finally:
        await http.aclose()
