"""Memory of a store with the Pods of a large cluster."""

import asyncio
import gc
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sized
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from bench import stream
from bench.line import Line, line
from imex_dra.api.views import PODS, Pod
from imex_dra.kube.client import EVERYTHING, Client
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_sandbox.kubernetes.progress import Progress

CACHED = 20_000
BUDGET_MB = 60


def memory(progress: Progress) -> Iterator[Line]:
    """Growth of the resident memory of a new process while its reflector fills a store from a streamed list.

    A list of one Pod comes first, to load the modules (5 MB) that the measurement must not include. The yardstick
    reads the same stream and keeps the Pods as dicts.
    """
    with stream.serving() as server:
        progress.show("views")
        views = _in_new_process(_growth_of_store, server)
        progress.show("dicts")
        dicts = _in_new_process(_growth_of_dicts, server)
    yield line(
        f"store of {CACHED:,} Pods",
        views / 1e6,
        "MB",
        yardstick=dicts / 1e6,
        yardstick_is="the same Pods as dicts",
        at_most=BUDGET_MB,
    )


def _in_new_process(measure: Callable[[str], int], server: str) -> int:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as child:
        return child.submit(measure, server).result()


def _growth_of_store(server: str) -> int:
    return asyncio.run(_growth(server, _store))


def _growth_of_dicts(server: str) -> int:
    return asyncio.run(_growth(server, _dicts))


async def _growth(server: str, fill: Callable[[Client, int], Awaitable[Sized]]) -> int:
    async with _client(f"{server}/initial/1") as client:
        await fill(client, 1)
    async with _client(f"{server}/initial/{CACHED}") as client:
        before = _resident()
        kept = await fill(client, CACHED)
        growth = _resident() - before
    assert len(kept) == CACHED
    return growth


async def _store(client: Client, count: int) -> Sized:
    store: Store[Pod] = Store()
    reflector = Reflector(client, PODS, store)
    reflecting = asyncio.create_task(reflector.run())
    await reflector.synced.wait()
    reflecting.cancel()
    await asyncio.wait({reflecting})
    return store


async def _dicts(client: Client, count: int) -> Sized:
    kept: dict[tuple[str, str], Any] = {}
    async with client.watch(PODS, EVERYTHING, inactivity=90) as batches:
        async for batch in batches:
            for pod in (msgspec.json.decode(text)["object"] for text in batch if text):
                kept[pod["metadata"]["namespace"], pod["metadata"]["name"]] = pod
            if len(kept) == count:
                return kept
    raise AssertionError("the stream ended before the list was complete")


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[Client]:
    client = Client(httpx2.AsyncClient(base_url=url, headers={"User-Agent": "bench/0"}))
    yield client
    await client.close()


def _resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


BENCHMARKS = (memory,)
