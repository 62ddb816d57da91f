"""The time from a change on a real API server to its reconcile."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from statistics import quantiles

import httpx2

from bench.line import Line, line
from imex_dra.api.meta import Key, ObjectMeta, key_of
from imex_dra.api.views import LEASES, Lease, LeaseSpec
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.connection import connect
from imex_dra.kube.controller import Controller
from imex_dra.kube.queue import WorkQueue
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.progress import Progress

KEY = Key("default", "changing")
ONLY_IT = Selection(KEY.namespace, fields=f"metadata.name={KEY.name}")
BLOCKS = 20
CHANGES = 50
"""In each block: long enough that opening a stream does not matter, short enough that both see the same load."""

Heard = Callable[[str], None]
"""Called with the holder that a follower sees in the object."""
Follower = Callable[[Heard], AbstractAsyncContextManager[None]]


def latency(progress: Progress) -> Iterator[Line]:
    """From just before the write request is sent to the moment `reconcile` runs with the new object in the store.

    One Lease on a real API server is patched again and again, one change at a time; reflector, queue and
    controller follow it as they do in a program. The yardstick is a bare watch stream of the same object, in
    turns with it, that ends when the bytes arrive.
    """
    with tempfile.TemporaryDirectory(prefix="imex-bench-") as directory:
        progress.show("starting a control plane")
        with ControlPlane(Path(directory), scheduler=False, controller_manager=False) as control_plane:
            ours, bare = asyncio.run(_measure(control_plane.kubeconfig(), progress))
    for percentile in (50, 99):
        yield line(
            f"change to reconcile, p{percentile}",
            _percentile(ours, percentile),
            "ms",
            yardstick=_percentile(bare, percentile),
            yardstick_is="a bare watch stream",
        )


async def _measure(kubeconfig: Path, progress: Progress) -> tuple[list[float], list[float]]:
    client = Client.connect("imex-bench", kubeconfig)
    http = connect("imex-bench", kubeconfig)
    await client.create(LEASES, Lease(ObjectMeta(name=KEY.name, namespace=KEY.namespace), LeaseSpec("unchanged")))
    changes = Changes(client)
    ours: list[float] = []
    bare: list[float] = []
    for block in range(1, BLOCKS + 1):
        progress.show(f"block {block}/{BLOCKS}")
        bare += await changes.timed(lambda heard: _bare_watch(http, heard))
        ours += await changes.timed(lambda heard: _controller(client, heard))
    await http.aclose()
    await client.close()
    return ours, bare


class Changes:
    """Patches the object and measures the time until a follower sees the change."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made = 0
        self._awaited = ""
        self._heard_at: asyncio.Future[float]

    async def timed(self, follower: Follower) -> list[float]:
        """Milliseconds for each change of one block; the first one only shows that the stream is open."""
        async with follower(self._hear):
            return [await self._one() for _ in range(CHANGES + 1)][1:]

    async def _one(self) -> float:
        self._made += 1
        self._awaited = f"holder-{self._made:06}"
        self._heard_at = asyncio.get_running_loop().create_future()
        sent_at = time.perf_counter()
        await self._client.patch(LEASES, KEY, {"spec": {"holderIdentity": self._awaited}})
        async with asyncio.timeout(30):
            return (await self._heard_at - sent_at) * 1000

    def _hear(self, holder: str) -> None:
        if holder == self._awaited and not self._heard_at.done():
            self._heard_at.set_result(time.perf_counter())


@asynccontextmanager
async def _controller(client: Client, heard: Heard) -> AsyncIterator[None]:
    store: Store[Lease] = Store()
    queue: WorkQueue[Key] = WorkQueue()

    def enqueue(old: Lease | None, new: Lease | None) -> None:
        if new is not None:
            queue.add(key_of(new))

    async def reconcile(key: Key) -> None:
        if lease := store.get(key):
            heard(lease.spec.holder_identity)

    store.subscribe(enqueue)
    reflector = Reflector(client, LEASES, store, selection=ONLY_IT)
    reflecting = asyncio.create_task(reflector.run())
    working = asyncio.create_task(Controller("bench", queue, reconcile).run())
    await reflector.synced.wait()
    yield
    reflecting.cancel()
    queue.close()
    await asyncio.wait({reflecting, working})


@asynccontextmanager
async def _bare_watch(http: httpx2.AsyncClient, heard: Heard) -> AsyncIterator[None]:
    """No list, no lines, no objects: the name of the holder is cut out of the bytes."""
    query = {"watch": "1", **ONLY_IT.parameters()}

    async def follow(response: httpx2.Response) -> None:
        async for chunk in response.aiter_raw():
            _, _, rest = chunk.partition(b'"holderIdentity":"')
            heard(rest.partition(b'"')[0].decode())

    async with http.stream("GET", LEASES.path(KEY.namespace), params=query) as response:
        following = asyncio.create_task(follow(response))
        yield
        following.cancel()
        await asyncio.wait({following})


def _percentile(times: list[float], percentile: int) -> float:
    return quantiles(times, n=100, method="inclusive")[percentile - 1]


BENCHMARKS = (latency,)
