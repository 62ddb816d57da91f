"""A whole program, all parts of the runtime together, while its line and its API server break.

Two replicas elect a leader; the leader watches Leases that say in a label who should hold them, patches them so,
and tells an Event of each. Whatever happens, never two work at once, and when it is over everything is as asked.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec import structs

from imex_dra.api.meta import Key, ObjectMeta, key_of
from imex_dra.api.reasons import Reason
from imex_dra.api.views import EVENTS, LEASES, Lease
from imex_dra.base.clock import SystemClock
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.controller import Controller
from imex_dra.kube.events import EventRecorder
from imex_dra.kube.lease import LeaderElection, LostLeadership, Timing
from imex_dra.kube.patch import patch_changes
from imex_dra.kube.queue import WorkQueue
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.proxy import Proxy
from tests.kube.waiting import until

pytestmark = [pytest.mark.kube, pytest.mark.slow]

TIMING = Timing(duration=5, deadline=3.0, period=0.5)
QUICK = Backoff(0.05, 0.5)
WANTED = "wanted"


@dataclass
class Replica:
    name: str
    client: Client
    election: Key
    at_work: list[str]
    lost: int = 0
    terms: int = 0

    async def run(self) -> None:
        while True:
            try:
                await LeaderElection(self.client, self.election, self.name, SystemClock(), TIMING).lead(self.work)
            except LostLeadership:
                self.lost += 1

    async def work(self) -> None:
        self.at_work.append(self.name)
        self.terms += 1
        try:
            async with asyncio.TaskGroup() as group:
                self.start(group)
        finally:
            self.at_work.remove(self.name)

    def start(self, group: asyncio.TaskGroup) -> None:
        """A leader starts from nothing; what the last one knew may be old."""
        self.store: Store[Lease] = Store()
        queue: WorkQueue[Key] = WorkQueue(QUICK)
        self.store.subscribe(lambda old, new: queue.add(key_of(new)) if new else None)
        self.recorder = EventRecorder(self.client, self.name, SystemClock())
        self.reflector = Reflector(self.client, LEASES, self.store, selection=WATCHED, backoff=QUICK)
        group.create_task(self.reflector.run())
        group.create_task(self.recorder.run())
        group.create_task(Controller("holders", queue, self.reconcile, workers=2).run())

    async def reconcile(self, key: Key) -> None:
        live = self.store.get(key)
        if live is not None:
            spec = structs.replace(live.spec, holder_identity=live.metadata.labels[WANTED])
            after = await patch_changes(self.client, LEASES, live, structs.replace(live, spec=spec))
            self.store.upsert(after)
            self.recorder.note(LEASES, after, Reason.NODES_READY, f"held by {spec.holder_identity}")


WATCHED = Selection("default", labels=WANTED)


@dataclass
class Site:
    plane: ControlPlane
    proxy: Proxy
    direct: Client
    replicas: list[Replica]
    at_work: list[str]
    asked: dict[str, str] = field(default_factory=dict)
    overlaps: list[str] = field(default_factory=list)

    @property
    def losses(self) -> int:
        return sum(replica.lost for replica in self.replicas)

    async def ask(self, name: str, holder: str) -> None:
        if name in self.asked:
            await self.direct.patch(LEASES, Key("default", name), {"metadata": {"labels": {WANTED: holder}}})
        else:
            meta = ObjectMeta(name=name, namespace="default", labels={WANTED: holder})
            await self.direct.create(LEASES, Lease(meta))
        self.asked[name] = holder

    async def is_as_asked(self) -> None:
        while {
            o.metadata.name: o.spec.holder_identity for o in await self.direct.list(LEASES, WATCHED)
        } != self.asked:
            await asyncio.sleep(0.05)

    async def is_told(self, holder: str) -> None:
        while not any(
            event.note == f"held by {holder}" for event in await self.direct.list(EVENTS, WATCHED_EVENTS)
        ):
            await asyncio.sleep(0.05)

    async def watch_for_overlaps(self) -> None:
        while True:
            if len(self.at_work) > 1:
                self.overlaps.append(str(self.at_work))
            await asyncio.sleep(0.005)


WATCHED_EVENTS = Selection("default")


async def is_cut(site: Site) -> None:
    for number in range(4):
        site.proxy.cut()
        await site.ask("first", f"cut-{number}")
        await asyncio.sleep(0.05)


async def hangs(site: Site) -> None:
    """Until the leader gave up, as it must; the writes that hang arrive at last, when nobody waits for them."""
    before = site.losses
    site.proxy.hang()
    await site.ask("first", "while-it-hung")
    await until(lambda: site.losses > before and not site.at_work, within=60)
    site.proxy.flow()


async def is_told_429(site: Site) -> None:
    await is_told(site, 429)


async def is_told_503(site: Site) -> None:
    await is_told(site, 503)


async def is_told(site: Site, code: int) -> None:
    """For longer than a request is repeated: first while it reconciles, then when it opens its watch anew."""
    site.proxy.answer(code, times=12, retry_after="0")
    await site.ask("first", f"told-{code}")
    await site.is_as_asked()
    site.proxy.answer(code, times=6, retry_after="0")
    site.proxy.cut()


async def loses_its_server(site: Site) -> None:
    site.plane.kill_apiserver()
    try:
        await until(lambda: any(replica.reflector.error for replica in site.replicas if replica.terms), within=60)
    finally:
        site.plane.start_apiserver()


async def finds_the_past_forgotten(site: Site) -> None:
    """410: an API server with an empty cache over a compacted etcd."""
    site.proxy.cut(for_good=True)
    await site.ask("unseen", "nobody")
    await site.direct.delete(LEASES, await site.direct.get(LEASES, Key("default", "unseen")))
    del site.asked["unseen"]
    site.plane.compact()
    site.plane.kill_apiserver()
    site.plane.start_apiserver()
    site.proxy.flow()


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("fragile"), scheduler=False, controller_manager=False) as running:
        yield running


@asynccontextmanager
async def running(plane: ControlPlane, directory: Path, name: str) -> AsyncIterator[Site]:
    async with Proxy(plane.url, plane.authority.certificate) as proxy:
        kubeconfig = proxy.kubeconfig(plane.kubeconfig(), directory)
        at_work: list[str] = []
        clients = [Client.connect("imex-controller", kubeconfig) for _ in range(2)]
        replicas = [
            Replica(f"replica-{number}", client, Key("kube-system", name), at_work)
            for number, client in enumerate(clients)
        ]
        site = Site(plane, proxy, Client.connect("imex-cli", plane.kubeconfig()), replicas, at_work)
        tasks = [asyncio.create_task(replica.run()) for replica in replicas]
        tasks.append(asyncio.create_task(site.watch_for_overlaps()))
        try:
            yield site
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for lease in await site.direct.list(LEASES, WATCHED):
                await site.direct.delete(LEASES, lease)
            for client in (*clients, site.direct):
                await client.close()


@pytest.mark.parametrize(
    "fault", [is_cut, hangs, is_told_429, is_told_503, loses_its_server, finds_the_past_forgotten]
)
async def test_a_program_that(
    fault: Callable[[Site], Awaitable[None]], fragile: ControlPlane, tmp_path: Path
) -> None:
    name = fault.__name__.replace("_", "-")
    async with running(fragile, tmp_path, name) as site, asyncio.timeout(150):
        await site.ask("first", f"{name}-before")
        await site.is_as_asked()
        await site.is_told(f"{name}-before")
        await fault(site)
        await site.ask("first", f"{name}-after")
        await site.ask("second", f"{name}-after")
        await site.is_as_asked()
        await site.is_told(f"{name}-after")
        await until(lambda: len(site.at_work) == 1, within=60)
        assert not site.overlaps
