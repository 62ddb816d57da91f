"""The reflector over scripted streams in virtual time: what a real server does too rarely to wait for."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec

from imex_dra.api.views import LEASES, Lease
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from tests.virtual import run

Answer = httpx2.Response | AsyncIterator[bytes]
EVERY_SECOND = Backoff(1.0, 1.0, jitter=lambda: 1.0)


def lease(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": str(version)}}


def event(kind: str, obj: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": kind, "object": obj}) + b"\n"


def bookmark(version: int, **annotations: str) -> bytes:
    metadata = {"resourceVersion": str(version), "annotations": {f"k8s.io/{k}": v for k, v in annotations.items()}}
    return event("BOOKMARK", {"kind": "Lease", "metadata": metadata})


def initial(version: int, *names: str) -> bytes:
    """A streamed list and its end."""
    shown = b"".join(event("ADDED", lease(name, 1)) for name in names)
    return shown + bookmark(version, **{"initial-events-end": "true"})


async def stream(*lines: bytes, open_for: float = 0.0) -> AsyncIterator[bytes]:
    for line in lines:
        yield line
    await asyncio.sleep(open_for)


async def silence() -> AsyncIterator[bytes]:
    await asyncio.get_running_loop().create_future()
    yield b""


def refusal(code: int, message: str) -> httpx2.Response:
    return httpx2.Response(code, json={"code": code, "reason": "", "message": message})


@dataclass
class Script:
    """Answers in the order written; then silence. Remembers what it was asked, and when."""

    answers: list[Callable[[], Answer]]
    asked: list[dict[str, str]] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    store: Store[Lease] = field(default_factory=Store)

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(dict(request.url.params))
        self.moments.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0)() if self.answers else silence()
        return answer if isinstance(answer, httpx2.Response) else httpx2.Response(200, content=answer)

    @asynccontextmanager
    async def playing(self, lasting: float = 30.0) -> AsyncIterator[Reflector[Lease]]:
        transport = httpx2.MockTransport(self.handle)
        http = httpx2.AsyncClient(transport=transport, base_url="http://script", headers={"User-Agent": "t/0"})
        reflector = Reflector(Client(http), LEASES, self.store, backoff=EVERY_SECOND)
        task = asyncio.create_task(reflector.run())
        await asyncio.sleep(lasting)
        yield reflector
        task.cancel()
        await asyncio.wait({task})

    @property
    def versions(self) -> list[str]:
        return [parameters.get("resourceVersion", "") for parameters in self.asked]

    @property
    def names(self) -> list[str]:
        return sorted(found.metadata.name for found in self.store.values())


def test_a_bookmark_is_where_the_next_watch_starts() -> None:
    async def scenario() -> None:
        script = Script([lambda: stream(initial(5, "a")), lambda: stream(bookmark(900))])
        async with script.playing() as reflector:
            assert script.versions == ["", "5", "900"]
            assert reflector.lists == 1
            assert all(parameters["allowWatchBookmarks"] == "true" for parameters in script.asked)

    run(scenario())


def test_an_event_is_where_the_next_watch_starts_even_if_it_can_t_be_read() -> None:
    async def scenario() -> None:
        strange = lease("b", 7) | {"spec": {"holderIdentity": 7}}
        script = Script(
            [
                lambda: stream(initial(5, "a"), event("MODIFIED", lease("a", 6))),
                lambda: stream(event("ADDED", strange)),
                lambda: stream(event("DELETED", lease("a", 8))),
            ]
        )
        async with script.playing():
            assert script.versions == ["", "6", "7", "8"]
            assert script.names == []

    run(scenario())


def test_a_server_that_can_t_stream_lists_is_asked_for_one_and_never_again_for_the_other() -> None:
    async def scenario() -> None:
        page = {"metadata": {"resourceVersion": "5"}, "items": [lease("a", 1)]}
        script = Script(
            [
                lambda: refusal(422, "sendInitialEvents is forbidden for watch unless the feature gate is on"),
                lambda: httpx2.Response(200, json=page),
                lambda: refusal(410, "too old"),
                lambda: httpx2.Response(200, json=page),
            ]
        )
        async with script.playing() as reflector:
            assert [("sendInitialEvents" in asked, "watch" in asked) for asked in script.asked] == [
                (True, True),
                (False, False),
                (False, True),
                (False, False),
                (False, True),
            ]
            assert reflector.lists == 2
            assert script.names == ["a"]

    run(scenario())


def test_what_was_shown_before_the_stream_broke_is_not_taken_for_the_whole_list() -> None:
    async def scenario() -> None:
        script = Script(
            [
                lambda: stream(initial(5, "a", "b")),
                lambda: stream(event("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})),
                lambda: stream(event("ADDED", lease("a", 1)), bookmark(8)),
                lambda: stream(initial(9, "a", "c"), open_for=100),
            ]
        )
        async with script.playing(lasting=1.5):
            assert script.versions == ["", "5", ""]
            assert script.names == ["a", "b"]
            await asyncio.sleep(1)
            assert script.names == ["a", "c"]

    run(scenario())


def test_what_follows_the_list_in_the_same_breath_is_taken_too() -> None:
    async def scenario() -> None:
        script = Script([lambda: stream(initial(5, "a") + event("ADDED", lease("b", 6)))])
        async with script.playing():
            assert script.names == ["a", "b"]

    run(scenario())


def test_an_answer_to_our_own_write_that_comes_after_the_objects_end_resurrects_nothing() -> None:
    async def scenario() -> None:
        ours = msgspec.convert(lease("ours", 6), Lease)
        end = event("ADDED", lease("ours", 6)) + event("DELETED", lease("ours", 7))
        script = Script([lambda: stream(initial(5, "a"), end, open_for=100)])
        async with script.playing():
            script.store.upsert(ours)
            assert script.names == ["a"]

    run(scenario())


def test_lines_may_be_cut_anywhere() -> None:
    async def scenario() -> None:
        text = initial(5, "a") + event("ADDED", lease("b", 6))
        script = Script([lambda: stream(*(text[i : i + 7] for i in range(0, len(text), 7)))])
        async with script.playing():
            assert script.names == ["a", "b"]

    run(scenario())


def test_a_server_whose_versions_go_back_is_listed_anew_and_believed() -> None:
    async def scenario() -> None:
        script = Script(
            [
                lambda: stream(initial(500, "a", "b"), event("MODIFIED", lease("a", 600))),
                lambda: stream(bookmark(20)),
                lambda: stream(initial(21, "a"), event("MODIFIED", lease("a", 22)), open_for=100),
            ]
        )
        async with script.playing():
            assert script.versions == ["", "600", ""]
            assert [found.metadata.resource_version for found in script.store.values()] == ["22"]

    run(scenario())


def test_a_watch_that_ends_at_once_again_and_again_is_opened_ever_more_slowly() -> None:
    async def scenario() -> None:
        script = Script([lambda: stream(initial(5)), *[stream] * 20])
        async with script.playing(lasting=10.5):
            assert script.moments == [0.0, *(float(second) for second in range(11))]

    run(scenario())


def test_a_watch_that_was_quiet_for_its_whole_life_is_opened_anew_at_once() -> None:
    async def scenario() -> None:
        script = Script([lambda: stream(initial(5)), *[lambda: stream(open_for=60)] * 3])
        async with script.playing(lasting=200):
            assert script.moments == [0.0, 0.0, 60.0, 120.0, 180.0]

    run(scenario())


def test_watches_opened_together_do_not_end_together() -> None:
    async def scenario() -> None:
        script = Script([lambda: stream(initial(5)), *[lambda: stream(bookmark(6), open_for=2)] * 40])
        async with script.playing(lasting=60):
            lifetimes = {int(parameters["timeoutSeconds"]) for parameters in script.asked}
            assert len(lifetimes) > 5
            assert all(150 <= lifetime <= 300 for lifetime in lifetimes)

    run(scenario())
