"""The reflector on a real API server and on the embedded one: interrupted, silent, expired, rejected watches."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from imex_dra.api.meta import Key, ObjectMeta, Resource
from imex_dra.api.metrics import WATCH_RESTARTS
from imex_dra.api.views import LEASES, Lease, LeaseSpec
from imex_dra.base.errors import Gone
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.faultproxy import FaultProxy
from tests.waiting import until_async

QUICK = Backoff(0.02, 0.5)


class Replica:
    """A reflector, its store, and the notifications of a subscriber."""

    def __init__(self, client: Client, namespace: str, **options: Any) -> None:
        self.store: Store[Lease] = Store()
        self.changes: list[tuple[str, str]] = []
        self.store.subscribe(self.notified)
        self.reflector = Reflector(
            client, LEASES, self.store, selection=Selection(namespace), backoff=QUICK, **options
        )

    def notified(self, old: Lease | None, new: Lease | None) -> None:
        subject = new or old
        assert subject is not None
        change = "added" if old is None else "deleted" if new is None else "modified"
        self.changes.append((change, subject.metadata.name))

    @property
    def holders(self) -> dict[str, str]:
        return {lease.metadata.name: lease.spec.holder_identity for lease in self.store.values()}

    def has(self, holders: dict[str, str]) -> bool:
        return self.holders == holders

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Replica"]:
        task = asyncio.create_task(self.reflector.run())
        try:
            async with asyncio.timeout(60):
                await self.reflector.synced.wait()
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task})
        assert task.cancelled()


async def create(client: Client, namespace: str, name: str, holder: str = "a") -> Lease:
    return await client.create(
        LEASES, Lease(ObjectMeta(name=name, namespace=namespace), LeaseSpec(holder_identity=holder))
    )


async def set_holder(client: Client, namespace: str, name: str, holder: str) -> Lease:
    return await client.patch(LEASES, Key(namespace, name), {"spec": {"holderIdentity": holder}})


async def test_a_watch_that_is_opened_again_is_counted_by_what_ended_the_one_before(
    client: Client, namespace: str
) -> None:
    def ended() -> float:
        found = (sample for sample in client.metrics.samples() if sample.metric is WATCH_RESTARTS)
        return sum(sample.value for sample in found if sample.labels == ("Ended",))

    async with Replica(client, namespace, lifetime=2.0).running():
        assert ended() == 0
        await until_async(lambda: ended() >= 1)


async def test_the_store_is_filled_and_follows_changes(client: Client, namespace: str) -> None:
    old = await create(client, namespace, "old")
    async with Replica(client, namespace).running() as replica:
        assert replica.holders == {"old": "a"}
        await create(client, namespace, "new")
        await set_holder(client, namespace, "new", "b")
        await client.delete(LEASES, old)
        await until_async(lambda: replica.holders == {"new": "b"})
        assert replica.changes == [("added", "old"), ("added", "new"), ("modified", "new"), ("deleted", "old")]


async def test_a_server_that_streams_the_list_gets_a_single_request(
    proxied_client: Client, proxy: FaultProxy, namespace: str
) -> None:
    await create(proxied_client, namespace, "a")
    proxy.requests.clear()
    async with Replica(proxied_client, namespace).running() as replica:
        assert replica.holders == {"a": "a"}
        assert len(proxy.requests) == 1
        assert "sendInitialEvents=true" in proxy.requests[0]


async def test_an_interrupted_watch_is_resumed_without_a_list(
    proxied_client: Client, proxy: FaultProxy, client: Client, namespace: str
) -> None:
    await create(client, namespace, "a")
    async with Replica(proxied_client, namespace).running() as replica:
        for round_ in range(3):
            proxy.cut()
            await set_holder(client, namespace, "a", f"round-{round_}")
            await until_async(partial(replica.has, {"a": f"round-{round_}"}))
        assert replica.reflector.lists == 1
        assert replica.changes.count(("added", "a")) == 1


async def test_no_change_is_lost_when_the_server_ends_watches(client: Client, namespace: str) -> None:
    async with Replica(client, namespace, lifetime=2).running() as replica:
        for number in range(12):
            await create(client, namespace, f"l{number}")
            await asyncio.sleep(0.25)
        await until_async(lambda: len(replica.store) == 12)
        assert replica.reflector.lists == 1
        assert len(replica.changes) == 12


async def test_a_watch_that_the_server_does_not_end_in_time_is_reopened(
    proxied_client: Client, proxy: FaultProxy, client: Client, namespace: str
) -> None:
    async with Replica(proxied_client, namespace, lifetime=2, grace=0.5).running() as replica:
        proxy.hang()
        await create(client, namespace, "a")
        await until_async(lambda: "ReadTimeout" in str(replica.reflector.error))
        proxy.resume()
        await until_async(lambda: replica.holders == {"a": "a"})


@pytest.mark.parametrize("code", [200, 410, 429, 500, 503])
async def test_error_responses_are_retried_without_losing_changes(
    code: int, proxied_client: Client, proxy: FaultProxy, client: Client, namespace: str
) -> None:
    removed = await create(client, namespace, "removed")
    await create(client, namespace, "kept")
    async with Replica(proxied_client, namespace).running() as replica:
        proxy.answer(code, times=3)
        proxy.cut()
        await client.delete(LEASES, removed)
        await create(client, namespace, "new")
        await until_async(lambda: replica.holders == {"kept": "a", "new": "a"})
        assert replica.changes.count(("deleted", "removed")) == 1
        assert replica.changes.count(("added", "kept")) == 1
        assert replica.reflector.lists == (2 if code == 410 else 1)


async def test_an_object_that_cannot_be_decoded_is_ignored(client: Client, namespace: str) -> None:
    class StrictSpec(LeaseSpec, frozen=True):
        lease_duration_seconds: int = 0
        renew_time: int = 0  # type: ignore[assignment]  # not what the server sends

    class StrictLease(Lease, frozen=True):
        spec: StrictSpec = StrictSpec()

    store: Store[StrictLease] = Store()
    strict = Resource(StrictLease, "coordination.k8s.io", "v1", "leases")
    reflector = Reflector(client, strict, store, selection=Selection(namespace), backoff=QUICK)
    task = asyncio.create_task(reflector.run())
    await create(client, namespace, "a")
    await until_async(lambda: len(store) == 1)
    patch = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
    await client.patch(LEASES, Key(namespace, "a"), patch)
    await create(client, namespace, "b")
    await until_async(lambda: len(store) == 2)
    assert reflector.error is None
    task.cancel()
    await asyncio.wait({task})


@pytest.fixture(scope="module")
def own_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server that tests may kill. It cannot stream lists, like Kubernetes before 1.34."""
    with ControlPlane(
        tmp_path_factory.mktemp("own-control-plane"),
        scheduler=False,
        controller_manager=False,
        apiserver_flags=["--feature-gates=WatchList=false"],
    ) as running:
        yield running


@pytest.fixture
async def own_client(own_control_plane: ControlPlane) -> AsyncIterator[Client]:
    connected = Client.connect("imex-controller", own_control_plane.kubeconfig())
    yield connected
    await connected.close()


@pytest.mark.kube
async def test_a_server_that_cannot_stream_is_listed_in_pages(own_client: Client) -> None:
    for number in range(5):
        await create(own_client, "default", f"page-{number}")
    async with Replica(own_client, "default", page_size=2).running() as replica:
        assert {f"page-{number}" for number in range(5)} <= replica.holders.keys()
        await create(own_client, "default", "after")
        await until_async(lambda: "after" in replica.holders)


@pytest.mark.kube
async def test_the_watch_is_resumed_after_a_restart_of_the_api_server(
    own_control_plane: ControlPlane, own_client: Client
) -> None:
    await create(own_client, "default", "lasting")
    async with Replica(own_client, "default").running() as replica:
        replica.changes.clear()
        own_control_plane.kill_apiserver()
        await until_async(lambda: "All connection attempts failed" in str(replica.reflector.error))
        own_control_plane.start_apiserver()
        await until_async(lambda: replica.reflector.error is None)
        await set_holder(own_client, "default", "lasting", "b")
        await until_async(lambda: replica.holders["lasting"] == "b")
        assert replica.changes == [("modified", "lasting")]


@pytest.mark.kube
async def test_an_expired_resource_version_leads_to_a_list_that_notifies_of_the_differences(
    own_control_plane: ControlPlane, own_client: Client, tmp_path: Path
) -> None:
    """410 as an event in the watch: the API server has an empty cache, and etcd is compacted."""
    for name in ("kept", "removed", "recreated"):
        first = (await create(own_client, "default", name)).metadata.resource_version
    async with FaultProxy(own_control_plane.url, own_control_plane.authority.certificate) as proxy:
        proxied_client = Client.connect(
            "imex-controller", proxy.kubeconfig(own_control_plane.kubeconfig(), tmp_path)
        )
        async with Replica(proxied_client, "default").running() as replica:
            replica.changes.clear()
            proxy.cut(for_good=True)
            for name in ("removed", "recreated"):
                await own_client.delete(LEASES, await own_client.get(LEASES, Key("default", name)))
            await create(own_client, "default", "recreated", holder="b")
            own_control_plane.compact()
            own_control_plane.kill_apiserver()
            own_control_plane.start_apiserver()
            proxy.resume()
            with pytest.raises(Gone):
                await anext(own_client.pages(LEASES, resourceVersion=first, resourceVersionMatch="Exact"))
            await until_async(lambda: replica.reflector.lists == 2)
            assert replica.holders["recreated"] == "b"
            assert sorted(replica.changes) == [
                ("added", "recreated"),
                ("deleted", "recreated"),
                ("deleted", "removed"),
            ]
        await proxied_client.close()
