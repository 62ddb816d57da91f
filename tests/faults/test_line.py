"""A node's line to a real API server: it carries everything, and a real client sees each way to disturb it."""

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
from imex_dra.sandbox.faults.conduct import Answer, Conduct
from imex_dra.sandbox.faults.interception import HOST, Tls
from imex_dra.sandbox.faults.line import Line
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.kubernetes.kubectl import Kubectl
from tests.kube.waiting import until

pytestmark = pytest.mark.kube


class ConfigMap(View, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}


CONFIG_MAPS = Resource(ConfigMap, "", "v1", "configmaps")
LARGE = {"large": "x" * 300_000}


@pytest.fixture
async def line(control_plane: ControlPlane) -> AsyncIterator[Line]:
    own = control_plane.authority.server("fault", [f"IP:{HOST}"])
    target = urlsplit(control_plane.url)
    assert target.hostname
    assert target.port
    line = Line((target.hostname, target.port), Tls(own, control_plane.authority.certificate))
    await line.start()
    yield line
    await line.stop()


@pytest.fixture
def kubeconfig(control_plane: ControlPlane, line: Line, tmp_path: Path) -> Path:
    config = yaml.safe_load(control_plane.kubeconfig().read_text())
    config["clusters"][0]["cluster"]["server"] = line.url
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[Client]:
    """One that repeats quickly what may be repeated."""
    client = Client(connect("imex-node", kubeconfig), backoff=Backoff(0.01, 0.01))
    yield client
    await client.close()


def config_map(data: dict[str, str] | None = None) -> ConfigMap:
    return ConfigMap(ObjectMeta(name=f"line-{uuid.uuid4().hex[:8]}", namespace="default"), data or {})


def key(obj: ConfigMap) -> Key:
    return Key("default", obj.metadata.name)


async def codes(client: Client, count: int) -> list[int]:
    """What as many requests are answered, each sent once."""
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


async def test_everything_passes_while_nothing_is_wrong(
    control_plane: ControlPlane, kubeconfig: Path, client: Client
) -> None:
    made = await client.create(CONFIG_MAPS, config_map(LARGE))
    assert (await client.get(CONFIG_MAPS, key(made))).data == LARGE
    kubectl = Kubectl(kubeconfig)
    seen = await asyncio.to_thread(kubectl.get, "-n", "default", "configmap", made.metadata.name)
    assert seen["data"] == LARGE


async def test_a_silent_line_says_nothing_and_loses_nothing(
    control_plane: ControlPlane, line: Line, client: Client
) -> None:
    direct = Client.connect("imex-controller", control_plane.kubeconfig())
    async with following(client) as (reflector, store):
        await line.behave(Conduct(silent=True))
        made = await direct.create(CONFIG_MAPS, config_map())
        asked = asyncio.create_task(client.get(CONFIG_MAPS, key(made)))
        await asyncio.wait({asked}, timeout=0.5)
        assert not asked.done()
        assert store.get(key(made)) is None

        await line.behave(Conduct())
        assert (await asyncio.wait_for(asked, 30)).metadata.uid == made.metadata.uid
        await until(lambda: store.get(key(made)) is not None)
        assert (reflector.lists, reflector.error) == (1, None)
    await direct.close()


async def test_a_refused_line_ends_connections_and_takes_none_until_it_is_mended(
    line: Line, client: Client
) -> None:
    address = (HOST, urlsplit(line.url).port)
    async with following(client) as (reflector, store):
        await line.behave(Conduct(refused=True))
        await until(lambda: isinstance(reflector.error, Unavailable))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        with pytest.raises(Unavailable, match="no answer from"):
            await client.get(CONFIG_MAPS, Key("default", "any"))

        await line.behave(Conduct())
        made = await client.create(CONFIG_MAPS, config_map())
        await until(lambda: store.get(key(made)) is not None)


async def test_a_share_of_requests_fails_and_the_others_pass(line: Line, client: Client) -> None:
    await line.behave(Conduct(answers=(Answer(503, 0.25), Answer(500, 0.25))))
    assert sorted(await codes(client, 13)) == [200] * 7 + [500] * 3 + [503] * 3
    await line.behave(Conduct())
    assert await codes(client, 4) == [200] * 4


async def test_writes_and_large_answers_pass_a_line_that_answers_itself(line: Line, client: Client) -> None:
    await line.behave(Conduct(answers=(Answer(503, 0.0001),)))
    made = await client.create(CONFIG_MAPS, config_map(LARGE))
    assert (await client.get(CONFIG_MAPS, key(made))).data == LARGE


async def test_throttled_requests_are_told_when_to_come_again(line: Line, client: Client) -> None:
    await line.behave(Conduct(answers=(Answer(429, 1.0, retry_after=0),)))
    with pytest.raises(TooManyRequests, match="a fault answers 429") as error:
        await client.create(CONFIG_MAPS, config_map(LARGE))
    assert error.value.retry_after == 0


async def test_a_watch_lives_for_its_time_and_ends_with_a_410_event(line: Line, client: Client) -> None:
    await line.behave(Conduct(watch_seconds=0.2))
    made = await client.create(CONFIG_MAPS, config_map(LARGE))
    async with client.watch(
        CONFIG_MAPS, Selection(), inactivity=30, sendInitialEvents="true", resourceVersionMatch="NotOlderThan"
    ) as batches:
        events = [json.loads(line) async for batch in batches for line in batch if line]
    assert made.metadata.name in {event["object"]["metadata"].get("name") for event in events[:-1]}
    assert events[-1]["type"] == "ERROR"
    assert (events[-1]["object"]["code"], events[-1]["object"]["reason"]) == (410, "Expired")


async def test_watches_ended_by_410_are_begun_anew_from_a_list(line: Line, client: Client) -> None:
    async with following(client) as (reflector, store):
        await line.behave(Conduct(watch_seconds=0.2))
        made = await client.create(CONFIG_MAPS, config_map())
        await until(lambda: reflector.lists >= 4, within=40)
        await until(lambda: store.get(key(made)) is not None)

        await line.behave(Conduct())
        await until(lambda: reflector.error is None)
        calm = reflector.lists
        another = await client.create(CONFIG_MAPS, config_map())
        await until(lambda: store.get(key(another)) is not None)
        assert reflector.lists <= calm + 1


@pytest.mark.parametrize(
    "junk", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"x" * 70000]
)
async def test_nonsense_costs_its_sender_the_connection_and_nobody_else(
    control_plane: ControlPlane, line: Line, client: Client, junk: bytes
) -> None:
    await line.behave(Conduct(answers=(Answer(503, 0.0001),)))
    trust = ssl.create_default_context(cafile=control_plane.authority.certificate)
    reader, writer = await asyncio.open_connection(HOST, urlsplit(line.url).port, ssl=trust)
    writer.write(junk)
    with suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.transport.abort()
    assert await codes(client, 1) == [200]
