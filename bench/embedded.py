"""The embedded control plane: creates, the fan-out of watches, and many hollow nodes and pods."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.line import Line, line
from imex_dra.kube.connection import connect
from imex_sandbox.cluster.handle import Cluster, running
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.embedded import AnyControlPlane, EmbeddedControlPlane
from imex_sandbox.kubernetes.progress import Progress
from imex_sandbox.racks import Cluster as Racks
from imex_sandbox.racks import Rack

CREATES = 1000
AT_ONCE = 10
WATCHERS = 100
CHANGES = 100
HOLLOW_RACKS, HOLLOW_NODES = 10, 100
PODS = 5000
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def creates(progress: Progress) -> Iterator[Line]:
    """ConfigMaps created per second over HTTPS, ten requests at a time, and the same on kube-apiserver."""
    rates = {}
    for name, start in (("embedded", EmbeddedControlPlane), ("kube-apiserver", _kubernetes)):
        progress.show(name)
        with tempfile.TemporaryDirectory(prefix="imex-bench-") as directory, start(Path(directory)) as running_one:
            rates[name] = asyncio.run(_creates(running_one))
    yield line(
        "ConfigMaps created",
        rates["embedded"],
        "1/s",
        yardstick=rates["kube-apiserver"],
        yardstick_is="kube-apiserver and etcd",
    )


def fan_out(progress: Progress) -> Iterator[Line]:
    """From a change until the last of 100 watches has it, while 100 changes follow each other."""
    seconds = {}
    for name, start in (("embedded", EmbeddedControlPlane), ("kube-apiserver", _kubernetes)):
        progress.show(name)
        with tempfile.TemporaryDirectory(prefix="imex-bench-") as directory, start(Path(directory)) as running_one:
            seconds[name] = asyncio.run(_fan_out(running_one))
    yield line(
        f"{CHANGES} changes delivered to {WATCHERS} watches",
        seconds["embedded"],
        "s",
        yardstick=seconds["kube-apiserver"],
        yardstick_is="kube-apiserver and etcd",
    )


def hollow(progress: Progress) -> Iterator[Line]:
    """1,000 hollow nodes without the driver, and 5,000 pods until all of them run."""
    racks = tuple(Rack(f"r{number}", "gb200-nvl72", nodes=HOLLOW_NODES) for number in range(HOLLOW_RACKS))
    spec = Racks("sandbox.imex-dra.io/v1", "Cluster", racks, "bench")
    with tempfile.TemporaryDirectory(prefix="imex-bench-") as directory:
        began = time.monotonic()
        with EmbeddedControlPlane(Path(directory)):
            alone = time.monotonic() - began
    began = time.monotonic()
    with running(spec, "--control-plane=embedded", "--no-driver", "--hollow") as cluster:
        yield line(
            f"{HOLLOW_RACKS * HOLLOW_NODES} hollow nodes ready from nothing",
            time.monotonic() - began,
            "s",
            yardstick=alone,
            yardstick_is="the embedded control plane alone",
        )
        progress.show(f"{PODS} pods")
        created, ran = asyncio.run(_run_pods(cluster, progress))
        yield line(
            f"{PODS} pods on them created, scheduled and running",
            ran,
            "s",
            yardstick=created,
            yardstick_is="until the last of them is created",
        )


def _kubernetes(directory: Path) -> ControlPlane:
    return ControlPlane(directory, scheduler=False, controller_manager=False)


@asynccontextmanager
async def _client(kubeconfig: Path) -> AsyncIterator[Any]:
    http = connect("imex-bench", kubeconfig)
    http.timeout = None  # a slow answer is a figure, not a failure
    try:
        yield http
    finally:
        await http.aclose()


async def _create(http: Any, path: str, body: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json"}
    request = http.build_request("POST", path, content=msgspec.json.encode(body), headers=headers)
    response = await http.send(request)
    if response.status_code != 201:
        raise RuntimeError(f"{path}: {response.status_code} {response.content.decode()}")


async def _create_all(http: Any, path: str, bodies: list[dict[str, Any]]) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def create(body: dict[str, Any]) -> None:
        async with limit:
            await _create(http, path, body)

    async with asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(create(body))


async def _creates(control_plane: AnyControlPlane) -> float:
    bodies = [{"metadata": {"name": f"c{number}"}, "data": {"a": "1" * 1000}} for number in range(CREATES)]
    async with _client(control_plane.kubeconfig()) as http:
        await _create(http, CONFIG_MAPS, {"metadata": {"name": "first"}})
        began = time.monotonic()
        await _create_all(http, CONFIG_MAPS, bodies)
        return CREATES / (time.monotonic() - began)


async def _fan_out(control_plane: AnyControlPlane) -> float:
    async with _client(control_plane.kubeconfig()) as http:
        started = [asyncio.Event() for _ in range(WATCHERS)]

        async def watch(number: int) -> None:
            query = {"watch": "1", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            request = http.build_request("GET", CONFIG_MAPS, params={**query, "allowWatchBookmarks": "true"})
            response = await http.send(request, stream=True)
            seen, rest = 0, b""
            async for chunk in response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                started[number].set()
                seen += sum(b'"c' in one and b'"ADDED"' in one for one in lines)
                if seen == CHANGES:
                    break
            await response.aclose()

        async with asyncio.TaskGroup() as group:
            for number in range(WATCHERS):
                group.create_task(watch(number))
            for event in started:
                await event.wait()
            began = time.monotonic()
            await _create_all(http, CONFIG_MAPS, [{"metadata": {"name": f"c{n}"}} for n in range(CHANGES)])
        return time.monotonic() - began


async def _run_pods(cluster: Cluster, progress: Progress) -> tuple[float, float]:
    """Seconds until all are created, and until all run."""
    path, container = "/api/v1/namespaces/default/pods", {"name": "main", "image": "any"}
    pods = [{"metadata": {"name": f"p{number}"}, "spec": {"containers": [container]}} for number in range(PODS)]
    async with _client(cluster.kubeconfig) as http:
        began = time.monotonic()
        await _create_all(http, path, pods)
        created = time.monotonic() - began
        count = 0
        while count < PODS:
            await asyncio.sleep(0.5)
            query = {"fieldSelector": "status.phase=Running"}
            response = await http.send(http.build_request("GET", path, params=query))
            count = len(msgspec.json.decode(response.content)["items"])
            progress.show(f"{count} of {PODS} pods run")
        return created, time.monotonic() - began


BENCHMARKS = (creates, fan_out, hollow)
