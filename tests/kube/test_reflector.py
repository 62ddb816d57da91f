"""The reflector on a real API server, with everything that happens to watches in between."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from imex_dra.api.meta import Key, ObjectMeta, Resource
from imex_dra.api.views import LEASES, Lease, LeaseSpec
from imex_dra.base.errors import Gone
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from tests.kube.proxy import Proxy
from tests.kube.waiting import until

pytestmark = pytest.mark.kube

QUICK = Backoff(0.02, 0.5)


class Mirror:
    """A running reflector, and what a listener heard of it."""

    def __init__(self, client: Client, namespace: str, **options: Any) -> None:
        self.store: Store[Lease] = Store()
        self.heard: list[tuple[str, str]] = []
        self.store.subscribe(self.hear)
        self.reflector = Reflector(
            client, LEASES, self.store, selection=Selection(namespace), backoff=QUICK, **options
        )

    def hear(self, old: Lease | None, new: Lease | None) -> None:
        subject = new or old
        assert subject is not None
        word = "added" if old is None else "gone" if new is None else "changed"
        self.heard.append((word, subject.metadata.name))

    @property
    def holders(self) -> dict[str, str]:
        return {lease.metadata.name: lease.spec.holder_identity for lease in self.store.values()}

    def shows(self, holders: dict[str, str]) -> bool:
        return self.holders == holders

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Mirror"]:
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


async def hold(client: Client, namespace: str, name: str, holder: str) -> Lease:
    return await client.patch(LEASES, Key(namespace, name), {"spec": {"holderIdentity": holder}})


async def test_it_fills_the_store_and_follows(client: Client, namespace: str) -> None:
    old = await create(client, namespace, "old")
    async with Mirror(client, namespace).running() as mirror:
        assert mirror.holders == {"old": "a"}
        await create(client, namespace, "new")
        await hold(client, namespace, "new", "b")
        await client.delete(LEASES, old)
        await until(lambda: mirror.holders == {"new": "b"})
        assert mirror.heard == [("added", "old"), ("added", "new"), ("changed", "new"), ("gone", "old")]


async def test_it_needs_no_list_where_the_server_streams_one(
    far_client: Client, proxy: Proxy, namespace: str
) -> None:
    await create(far_client, namespace, "a")
    proxy.requests.clear()
    async with Mirror(far_client, namespace).running() as mirror:
        assert mirror.holders == {"a": "a"}
        assert len(proxy.requests) == 1
        assert "sendInitialEvents=true" in proxy.requests[0]


async def test_it_goes_on_where_the_watch_ended(
    far_client: Client, proxy: Proxy, client: Client, namespace: str
) -> None:
    await create(client, namespace, "a")
    async with Mirror(far_client, namespace).running() as mirror:
        for round_ in range(3):
            proxy.cut()
            await hold(client, namespace, "a", f"round-{round_}")
            await until(partial(mirror.shows, {"a": f"round-{round_}"}))
        assert mirror.reflector.lists == 1
        assert mirror.heard.count(("added", "a")) == 1


async def test_the_servers_own_end_of_a_watch_loses_nothing(client: Client, namespace: str) -> None:
    async with Mirror(client, namespace, lifetime=2).running() as mirror:
        for number in range(12):
            await create(client, namespace, f"l{number}")
            await asyncio.sleep(0.25)
        await until(lambda: len(mirror.store) == 12)
        assert mirror.reflector.lists == 1
        assert len(mirror.heard) == 12


async def test_a_watch_that_is_silent_for_too_long_is_opened_anew(
    far_client: Client, proxy: Proxy, client: Client, namespace: str
) -> None:
    async with Mirror(far_client, namespace, inactivity=0.5).running() as mirror:
        proxy.hang()
        await create(client, namespace, "a")
        await until(lambda: "ReadTimeout" in str(mirror.reflector.error))
        proxy.flow()
        await until(lambda: mirror.holders == {"a": "a"})


@pytest.mark.parametrize("code", [200, 410, 429, 500, 503])
async def test_an_answer_that_is_none_is_survived(
    code: int, far_client: Client, proxy: Proxy, client: Client, namespace: str
) -> None:
    gone = await create(client, namespace, "gone")
    await create(client, namespace, "kept")
    async with Mirror(far_client, namespace).running() as mirror:
        proxy.answer(code, times=3)
        proxy.cut()
        await client.delete(LEASES, gone)
        await create(client, namespace, "new")
        await until(lambda: mirror.holders == {"kept": "a", "new": "a"})
        assert mirror.heard.count(("gone", "gone")) == 1
        assert mirror.heard.count(("added", "kept")) == 1
        assert mirror.reflector.lists == (2 if code == 410 else 1)


async def test_a_server_that_fails_again_and_again_is_asked_ever_more_slowly(
    far_client: Client, proxy: Proxy, namespace: str
) -> None:
    async with Mirror(far_client, namespace).running():
        proxy.requests.clear()
        proxy.answer(503, times=10_000)
        proxy.cut()
        await until(lambda: len(proxy.requests) >= 3)
        asked = len(proxy.requests)
        await asyncio.sleep(1.5)
        assert len(proxy.requests) - asked < 12


async def test_an_object_that_cannot_be_read_is_left_alone(client: Client, namespace: str) -> None:
    class PickySpec(LeaseSpec, frozen=True):
        lease_duration_seconds: int = 0
        renew_time: int = 0  # type: ignore[assignment]  # not what the server sends

    class PickyLease(Lease, frozen=True):
        spec: PickySpec = PickySpec()

    store: Store[PickyLease] = Store()
    picky = Resource(PickyLease, "coordination.k8s.io", "v1", "leases")
    reflector = Reflector(client, picky, store, selection=Selection(namespace), backoff=QUICK)
    task = asyncio.create_task(reflector.run())
    await create(client, namespace, "a")
    await until(lambda: len(store) == 1)
    patch = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
    await client.patch(LEASES, Key(namespace, "a"), patch)
    await create(client, namespace, "b")
    await until(lambda: len(store) == 2)
    assert reflector.error is None
    task.cancel()
    await asyncio.wait({task})


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server that may be killed, and that can't stream lists, like all before 1.34."""
    with ControlPlane(
        tmp_path_factory.mktemp("fragile"),
        scheduler=False,
        controller_manager=False,
        apiserver_flags=["--feature-gates=WatchList=false"],
    ) as running:
        yield running


@pytest.fixture
async def fragile_client(fragile: ControlPlane) -> AsyncIterator[Client]:
    connected = Client.connect("imex-controller", fragile.kubeconfig())
    yield connected
    await connected.close()


async def test_it_lists_in_pages_where_the_server_cannot_stream(fragile_client: Client) -> None:
    for number in range(5):
        await create(fragile_client, "default", f"page-{number}")
    async with Mirror(fragile_client, "default", page_size=2).running() as mirror:
        assert {f"page-{number}" for number in range(5)} <= mirror.holders.keys()
        await create(fragile_client, "default", "after")
        await until(lambda: "after" in mirror.holders)


async def test_a_killed_api_server_costs_nothing_but_the_wait(
    fragile: ControlPlane, fragile_client: Client
) -> None:
    await create(fragile_client, "default", "lasting")
    async with Mirror(fragile_client, "default").running() as mirror:
        mirror.heard.clear()
        fragile.kill_apiserver()
        await until(lambda: "All connection attempts failed" in str(mirror.reflector.error))
        fragile.start_apiserver()
        await until(lambda: mirror.reflector.error is None)
        await hold(fragile_client, "default", "lasting", "b")
        await until(lambda: mirror.holders["lasting"] == "b")
        assert mirror.heard == [("changed", "lasting")]


async def test_a_past_that_the_server_forgot_costs_a_list_and_only_the_difference_is_told(
    fragile: ControlPlane, fragile_client: Client, tmp_path: Path
) -> None:
    """410 as an event inside the watch: an API server with an empty cache over a compacted etcd."""
    for name in ("kept", "gone", "anew"):
        first = (await create(fragile_client, "default", name)).metadata.resource_version
    async with Proxy(fragile.url, fragile.authority.certificate) as proxy:
        far_client = Client.connect("imex-controller", proxy.kubeconfig(fragile.kubeconfig(), tmp_path))
        async with Mirror(far_client, "default").running() as mirror:
            mirror.heard.clear()
            proxy.cut(for_good=True)
            for name in ("gone", "anew"):
                await fragile_client.delete(LEASES, await fragile_client.get(LEASES, Key("default", name)))
            await create(fragile_client, "default", "anew", holder="b")
            fragile.compact()
            fragile.kill_apiserver()
            fragile.start_apiserver()
            proxy.flow()
            with pytest.raises(Gone):
                await anext(fragile_client.pages(LEASES, resourceVersion=first, resourceVersionMatch="Exact"))
            await until(lambda: mirror.reflector.lists == 2)
            assert mirror.holders["anew"] == "b"
            assert sorted(mirror.heard) == [("added", "anew"), ("gone", "anew"), ("gone", "gone")]
        await far_client.close()
