"""All parts of the controller runtime together, while the network and the API server fail.

Two replicas elect a leader. The leader watches Leases with a label that names the desired holder, patches
spec.holderIdentity, and records an Event. At no time do both replicas work, and after the fault every Lease has
the desired holder.
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
from imex_dra.base.clock import Clock
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.controller import Controller
from imex_dra.kube.events import EventRecorder
from imex_dra.kube.lease import LeaderElection, LostLeadership, Timing
from imex_dra.kube.patch import patch_changes
from imex_dra.kube.queue import WorkQueue
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.faultproxy import FaultProxy
from tests.waiting import until_async

pytestmark = [pytest.mark.kube, pytest.mark.slow]

TIMING = Timing(lease_duration=5, renew_deadline=3.0, retry_period=0.5)
QUICK = Backoff(0.05, 0.5)
DESIRED = "desired-holder"
WATCHED = Selection("default", labels=DESIRED)


@dataclass
class Replica:
    name: str
    client: Client
    election: Key
    working: list[str]
    """The replicas that work at the moment."""
    overlaps: list[str]
    """The replicas that worked at the same time."""
    lost: int = 0
    terms: int = 0

    async def run(self) -> None:
        while True:
            try:
                await LeaderElection(self.client, self.election, self.name, Clock(), TIMING).lead(self.work)
            except LostLeadership:
                self.lost += 1

    async def work(self) -> None:
        self.overlaps += [f"{self.name} started while {other} worked" for other in self.working]
        self.working.append(self.name)
        self.terms += 1
        try:
            async with asyncio.TaskGroup() as group:
                self.start(group)
        finally:
            self.working.remove(self.name)

    def start(self, group: asyncio.TaskGroup) -> None:
        """A new leader starts with an empty store; what it knew from an earlier term is outdated."""
        self.store: Store[Lease] = Store()
        queue: WorkQueue[Key] = WorkQueue(QUICK)
        self.store.subscribe(lambda old, new: queue.add(key_of(new)) if new else None)
        self.recorder = EventRecorder(self.client, self.name, Clock())
        self.reflector = Reflector(self.client, LEASES, self.store, selection=WATCHED, backoff=QUICK)
        group.create_task(self.reflector.run())
        group.create_task(self.recorder.run())
        group.create_task(Controller("holders", queue, self.reconcile, workers=2).run())

    async def reconcile(self, key: Key) -> None:
        live = self.store.get(key)
        if live is not None:
            spec = structs.replace(live.spec, holder_identity=live.metadata.labels[DESIRED])
            after = await patch_changes(self.client, LEASES, live, structs.replace(live, spec=spec))
            self.store.upsert(after)
            self.recorder.note(LEASES, after, Reason.NODES_READY, f"held by {spec.holder_identity}")


@dataclass
class Fixture:
    control_plane: ControlPlane
    proxy: FaultProxy
    direct: Client
    """Does not use the proxy."""
    replicas: list[Replica]
    working: list[str]
    overlaps: list[str]
    desired: dict[str, str] = field(default_factory=dict)

    @property
    def losses(self) -> int:
        return sum(replica.lost for replica in self.replicas)

    async def set_desired(self, name: str, holder: str) -> None:
        if name in self.desired:
            await self.direct.patch(LEASES, Key("default", name), {"metadata": {"labels": {DESIRED: holder}}})
        else:
            meta = ObjectMeta(name=name, namespace="default", labels={DESIRED: holder})
            await self.direct.create(LEASES, Lease(meta))
        self.desired[name] = holder

    async def is_reconciled(self) -> bool:
        leases = await self.direct.list(LEASES, WATCHED)
        return {lease.metadata.name: lease.spec.holder_identity for lease in leases} == self.desired

    async def has_event(self, holder: str) -> bool:
        events = await self.direct.list(EVENTS, Selection("default"))
        return any(event.note == f"held by {holder}" for event in events)


async def connections_are_reset(fixture: Fixture) -> None:
    for number in range(4):
        fixture.proxy.cut()
        await fixture.set_desired("first", f"reset-{number}")
        await asyncio.sleep(0.05)


async def requests_hang(fixture: Fixture) -> None:
    """Until the leader has stopped. The requests that hang reach the API server after that."""
    before = fixture.losses
    fixture.proxy.hang()
    await fixture.set_desired("first", "during-the-hang")
    await until_async(lambda: fixture.losses > before and not fixture.working)
    fixture.proxy.resume()


async def requests_get_429(fixture: Fixture) -> None:
    await requests_get(fixture, 429)


async def requests_get_503(fixture: Fixture) -> None:
    await requests_get(fixture, 503)


async def requests_get(fixture: Fixture, code: int) -> None:
    """More often than the client retries: first during a reconcile, then when the watch is reopened."""
    fixture.proxy.answer(code, times=12, retry_after="0")
    await fixture.set_desired("first", f"during-{code}")
    await until_async(fixture.is_reconciled)
    fixture.proxy.answer(code, times=6, retry_after="0")
    fixture.proxy.cut()


async def the_api_server_restarts(fixture: Fixture) -> None:
    fixture.control_plane.kill_apiserver()
    try:
        leaders = [replica for replica in fixture.replicas if replica.terms]
        await until_async(lambda: any(leader.reflector.error for leader in leaders))
    finally:
        fixture.control_plane.start_apiserver()


async def the_resource_version_expires(fixture: Fixture) -> None:
    """410: the API server has an empty cache, and etcd is compacted."""
    fixture.proxy.cut(for_good=True)
    await fixture.set_desired("short-lived", "unused")
    lease = await fixture.direct.get(LEASES, Key("default", "short-lived"))
    await fixture.direct.delete(LEASES, lease)
    del fixture.desired["short-lived"]
    fixture.control_plane.compact()
    fixture.control_plane.kill_apiserver()
    fixture.control_plane.start_apiserver()
    fixture.proxy.resume()


@pytest.fixture(scope="module")
def own_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(
        tmp_path_factory.mktemp("own-control-plane"), scheduler=False, controller_manager=False
    ) as running:
        yield running


@asynccontextmanager
async def running(control_plane: ControlPlane, directory: Path, lease: str) -> AsyncIterator[Fixture]:
    async with FaultProxy(control_plane.url, control_plane.authority.certificate) as proxy:
        kubeconfig = proxy.kubeconfig(control_plane.kubeconfig(), directory)
        working: list[str] = []
        overlaps: list[str] = []
        clients = [Client.connect("imex-controller", kubeconfig) for _ in range(2)]
        replicas = [
            Replica(f"replica-{number}", client, Key("kube-system", lease), working, overlaps)
            for number, client in enumerate(clients)
        ]
        direct = Client.connect("imex-cli", control_plane.kubeconfig())
        fixture = Fixture(control_plane, proxy, direct, replicas, working, overlaps)
        tasks = [asyncio.create_task(replica.run()) for replica in replicas]
        try:
            yield fixture
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for leftover in await direct.list(LEASES, WATCHED):
                await direct.delete(LEASES, leftover)
            for client in (*clients, direct):
                await client.close()


@pytest.mark.parametrize(
    "fault",
    [
        connections_are_reset,
        requests_hang,
        requests_get_429,
        requests_get_503,
        the_api_server_restarts,
        the_resource_version_expires,
    ],
)
async def test_one_replica_works_and_reconciles_everything_although(
    fault: Callable[[Fixture], Awaitable[None]], own_control_plane: ControlPlane, tmp_path: Path
) -> None:
    name = fault.__name__.replace("_", "-")
    async with running(own_control_plane, tmp_path, name) as fixture, asyncio.timeout(150):
        await fixture.set_desired("first", f"{name}-before")
        await until_async(fixture.is_reconciled)
        await until_async(lambda: fixture.has_event(f"{name}-before"))
        await fault(fixture)
        await fixture.set_desired("first", f"{name}-after")
        await fixture.set_desired("second", f"{name}-after")
        await until_async(fixture.is_reconciled)
        await until_async(lambda: fixture.has_event(f"{name}-after"))
        await until_async(lambda: len(fixture.working) == 1)
        assert not fixture.overlaps
