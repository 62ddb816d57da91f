"""The proxy of one node in front of a real API server: a real client sees the effect of each behavior."""

import asyncio
import json
import ssl
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from imex_dra.api.meta import Key, ObjectMeta, Resource, View
from imex_dra.base.errors import TooManyRequests, Unavailable
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.connection import connect
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.kubectl import Kubectl
from imex_sandbox.proxy.behavior import Behavior, InjectedError
from imex_sandbox.proxy.interceptor import Tls
from imex_sandbox.proxy.nodeproxy import HOST, NodeProxy
from tests.waiting import until_async

pytestmark = pytest.mark.kube


class ConfigMap(View, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}


CONFIG_MAPS = Resource(ConfigMap, "", "v1", "configmaps")
LARGE = {"large": "x" * 300_000}
WATCH_SECONDS = 2.0
"""A watch begins with all ConfigMaps; on a busy machine it takes long until they have arrived."""


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[NodeProxy]:
    certificate = control_plane.authority.server("proxy", [f"IP:{HOST}"])
    target = urlsplit(control_plane.url)
    assert target.hostname
    assert target.port
    tls = Tls(certificate, control_plane.authority.certificate)
    proxy = NodeProxy((target.hostname, target.port), tls)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
def kubeconfig(control_plane: ControlPlane, proxy: NodeProxy, tmp_path: Path) -> Path:
    config = yaml.safe_load(control_plane.kubeconfig().read_text())
    config["clusters"][0]["cluster"]["server"] = proxy.url
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[Client]:
    """With short delays between retries."""
    client = Client(connect("imex-node", kubeconfig), backoff=Backoff(0.01, 0.01))
    yield client
    await client.close()


def config_map(data: dict[str, str] | None = None) -> ConfigMap:
    return ConfigMap(ObjectMeta(name=f"proxy-{uuid.uuid4().hex[:8]}", namespace="default"), data or {})


def key(obj: ConfigMap) -> Key:
    return Key("default", obj.metadata.name)


async def status_codes(client: Client, count: int) -> list[int]:
    """Of as many requests, without retries."""
    return [(await client._http.get("/version")).status_code for _ in range(count)]


@asynccontextmanager
async def following(client: Client) -> AsyncIterator[tuple[Reflector[ConfigMap], Store[ConfigMap]]]:
    store: Store[ConfigMap] = Store()
    reflector = Reflector(client, CONFIG_MAPS, store, backoff=Backoff(0.01, 0.05))
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.synced.wait(), 30)
    yield reflector, store
    task.cancel()
    await asyncio.wait({task})


async def test_requests_pass_unchanged_without_a_fault(
    control_plane: ControlPlane, kubeconfig: Path, client: Client
) -> None:
    made = await client.create(CONFIG_MAPS, config_map(LARGE))
    assert (await client.get(CONFIG_MAPS, key(made))).data == LARGE
    kubectl = Kubectl(kubeconfig)
    seen = await asyncio.to_thread(kubectl.get, "-n", "default", "configmap", made.metadata.name)
    assert seen["data"] == LARGE


async def test_a_stalled_proxy_holds_bytes_back_and_loses_none(
    control_plane: ControlPlane, proxy: NodeProxy, client: Client
) -> None:
    direct = Client.connect("imex-controller", control_plane.kubeconfig())
    async with following(client) as (reflector, store):
        await proxy.set_behavior(Behavior(stall=True))
        made = await direct.create(CONFIG_MAPS, config_map())
        asked = asyncio.create_task(client.get(CONFIG_MAPS, key(made)))
        await asyncio.wait({asked}, timeout=0.5)
        assert not asked.done()
        assert store.get(key(made)) is None

        await proxy.set_behavior(Behavior())
        assert (await asyncio.wait_for(asked, 30)).metadata.uid == made.metadata.uid
        await until_async(lambda: store.get(key(made)) is not None)
        assert (reflector.lists, reflector.error) == (1, None)
    await direct.close()


async def test_a_refusing_proxy_closes_connections_and_accepts_none_until_the_fault_is_undone(
    proxy: NodeProxy, client: Client
) -> None:
    address = (HOST, urlsplit(proxy.url).port)
    async with following(client) as (reflector, store):
        await proxy.set_behavior(Behavior(refuse=True))
        await until_async(lambda: isinstance(reflector.error, Unavailable))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        with pytest.raises(Unavailable, match="no response from"):
            await client.get(CONFIG_MAPS, Key("default", "any"))

        await proxy.set_behavior(Behavior())
        made = await client.create(CONFIG_MAPS, config_map())
        await until_async(lambda: store.get(key(made)) is not None)


async def test_a_share_of_requests_fails_and_the_others_pass(proxy: NodeProxy, client: Client) -> None:
    await proxy.set_behavior(Behavior(errors=(InjectedError(503, 0.25), InjectedError(500, 0.25))))
    assert sorted(await status_codes(client, 13)) == [200] * 7 + [500] * 3 + [503] * 3
    await proxy.set_behavior(Behavior())
    assert await status_codes(client, 4) == [200] * 4


async def test_writes_and_large_responses_pass_an_intercepting_proxy(proxy: NodeProxy, client: Client) -> None:
    await proxy.set_behavior(Behavior(errors=(InjectedError(503, 0.0001),)))
    made = await client.create(CONFIG_MAPS, config_map(LARGE))
    assert (await client.get(CONFIG_MAPS, key(made))).data == LARGE


async def test_throttled_requests_get_a_retry_after(proxy: NodeProxy, client: Client) -> None:
    await proxy.set_behavior(Behavior(errors=(InjectedError(429, 1.0, retry_after=0),)))
    with pytest.raises(TooManyRequests, match="injected fault: HTTP 429") as error:
        await client.create(CONFIG_MAPS, config_map(LARGE))
    assert error.value.retry_after == 0


async def test_an_expired_watch_ends_with_a_410_event(proxy: NodeProxy, client: Client) -> None:
    await proxy.set_behavior(Behavior(watch_seconds=WATCH_SECONDS))
    made = await client.create(CONFIG_MAPS, config_map(LARGE))
    async with client.watch(
        CONFIG_MAPS, Selection(), inactivity=30, sendInitialEvents="true", resourceVersionMatch="NotOlderThan"
    ) as batches:
        events = [json.loads(line) async for batch in batches for line in batch if line]
    assert made.metadata.name in {event["object"]["metadata"].get("name") for event in events[:-1]}
    assert events[-1]["type"] == "ERROR"
    assert (events[-1]["object"]["code"], events[-1]["object"]["reason"]) == (410, "Expired")


async def test_a_reflector_lists_again_after_each_410(proxy: NodeProxy, client: Client) -> None:
    async with following(client) as (reflector, store):
        await proxy.set_behavior(Behavior(watch_seconds=WATCH_SECONDS))
        made = await client.create(CONFIG_MAPS, config_map())
        await until_async(lambda: reflector.lists >= 4)
        await until_async(lambda: store.get(key(made)) is not None)

        await proxy.set_behavior(Behavior())
        await until_async(lambda: reflector.error is None)
        lists = reflector.lists
        another = await client.create(CONFIG_MAPS, config_map())
        await until_async(lambda: store.get(key(another)) is not None)
        assert reflector.lists <= lists + 1


@pytest.mark.parametrize(
    "junk", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"x" * 70000]
)
async def test_a_malformed_request_ends_its_own_connection_only(
    control_plane: ControlPlane, proxy: NodeProxy, client: Client, junk: bytes
) -> None:
    await proxy.set_behavior(Behavior(errors=(InjectedError(503, 0.0001),)))
    trust = ssl.create_default_context(cafile=control_plane.authority.certificate)
    reader, writer = await asyncio.open_connection(HOST, urlsplit(proxy.url).port, ssl=trust)
    writer.write(junk)
    with suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.transport.abort()
    assert await status_codes(client, 1) == [200]
