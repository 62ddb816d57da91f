"""Watch events per second of CPU time, through a reflector and its store."""

import asyncio
import time
from collections.abc import Iterator
from statistics import median

import httpx2
import msgspec
from msgspec import Struct

from bench import pods, stream
from bench.line import Line, line
from imex_dra.api.views import PODS, Pod
from imex_dra.kube.client import Client
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_sandbox.kubernetes.progress import Progress

EVENTS = 10_000
ROUNDS = 7


class PodEvent(Struct):
    type: str
    object: Pod


def throughput(progress: Progress) -> Iterator[Line]:
    """Watch events of Pods over loopback HTTP, through reflector and store, per second of CPU time.

    The server is another process and sends all events at once, so that one read contains several. Raw decoding is
    msgspec decoding the same lines from memory into the same view. Medians of seven rounds, in turns.
    """
    lines = [pods.added(number) for number in range(EVENTS)]
    reflecting, reading, decoding = [], [], []
    with stream.serving() as server:
        url = f"{server}/live/{EVENTS}"
        asyncio.run(_reflect(url))
        for number in range(1, ROUNDS + 1):
            progress.show(f"round {number}/{ROUNDS}")
            reflecting.append(EVENTS / asyncio.run(_reflect(url)))
            reading.append(EVENTS / asyncio.run(_read(url)))
            decoding.append(EVENTS / _decode(lines))
    size = f"{len(lines[0]) / 1000:.1f} KB Pods"
    yield line(
        f"reflector and store, changes of {size}",
        median(reflecting),
        "events/s per core",
        yardstick=median(decoding),
        yardstick_is="raw decoding of the same bytes",
    )
    yield line(
        f"the stream read by httpx2, not decoded: {size}",
        median(reading),
        "events/s per core",
        yardstick=median(decoding),
        yardstick_is="raw decoding of the same bytes",
    )


async def _reflect(url: str) -> float:
    """CPU seconds until the store contains every Pod."""
    store: Store[Pod] = Store()
    arrived = asyncio.Event()

    def count(old: Pod | None, new: Pod | None) -> None:
        if len(store) == EVENTS:
            arrived.set()

    store.subscribe(count)
    client = Client(httpx2.AsyncClient(base_url=url, headers={"User-Agent": "bench/0"}))
    before = time.process_time()
    reflecting = asyncio.create_task(Reflector(client, PODS, store).run())
    await arrived.wait()
    used = time.process_time() - before
    reflecting.cancel()
    await asyncio.wait({reflecting})
    await client.close()
    return used


async def _read(url: str) -> float:
    """CPU seconds to read the same stream without decoding it."""
    arrived = -1  # the bookmark comes first
    async with httpx2.AsyncClient() as http:
        before = time.process_time()
        async with http.stream("GET", f"{url}/api/v1/pods") as response:
            async for chunk in response.aiter_raw():
                arrived += chunk.count(b"\n")
                if arrived == EVENTS:
                    break
            return time.process_time() - before


def _decode(lines: list[bytes]) -> float:
    decoder = msgspec.json.Decoder(PodEvent)
    before = time.process_time()
    kept = [decoder.decode(text) for text in lines]
    used = time.process_time() - before
    assert len(kept) == EVENTS
    return used


BENCHMARKS = (throughput,)
