"""The reflector with scripted responses in virtual time, for server behavior that is too rare to wait for."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec
import pytest
import structlog
from structlog.testing import LogCapture

from imex_dra.api.meta import Key
from imex_dra.api.views import LEASES, Lease
from imex_dra.kube import reflector as module
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from tests.kube.hostile import STORED
from tests.virtual import run

ScriptedResponse = httpx2.Response | AsyncIterator[bytes]
BACKOFF = Backoff(1.0, 8.0, jitter=lambda: 1.0)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> LogCapture:
    """Not capture_logs: another test may have configured logging, and the module's logger is then cached."""
    capture = LogCapture()
    everything = structlog.make_filtering_bound_logger(0)
    monkeypatch.setattr(module, "log", structlog.wrap_logger(None, [capture], everything))
    return capture


def lease(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": str(version)}}


def event(kind: str, obj: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": kind, "object": obj}) + b"\n"


def bookmark(version: int, **annotations: str) -> bytes:
    metadata = {"resourceVersion": str(version), "annotations": {f"k8s.io/{k}": v for k, v in annotations.items()}}
    return event("BOOKMARK", {"kind": "Lease", "metadata": metadata})


def initial(version: int, *names: str) -> bytes:
    """A complete streamed list."""
    added = b"".join(event("ADDED", lease(name, 1)) for name in names)
    return added + bookmark(version, **{"initial-events-end": "true"})


async def stream(*lines: bytes, open_for: float = 0.0) -> AsyncIterator[bytes]:
    for line in lines:
        yield line
    await asyncio.sleep(open_for)


async def hanging() -> AsyncIterator[bytes]:
    await asyncio.get_running_loop().create_future()
    yield b""


def error(code: int, message: str) -> httpx2.Response:
    return httpx2.Response(code, json={"code": code, "reason": "", "message": message})


@dataclass
class Script:
    """Returns the responses one after the other, then hangs. Records the parameters and the time of each
    request.
    """

    responses: list[Callable[[], ScriptedResponse]]
    requests: list[dict[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    read_timeouts: list[float] = field(default_factory=list)
    store: Store[Lease] = field(default_factory=Store)
    gradual: bool = False

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(dict(request.url.params))
        self.times.append(asyncio.get_running_loop().time())
        self.read_timeouts.append(request.extensions["timeout"]["read"])
        response = self.responses.pop(0)() if self.responses else hanging()
        return response if isinstance(response, httpx2.Response) else httpx2.Response(200, content=response)

    @asynccontextmanager
    async def running(self, seconds: float = 30.0) -> AsyncIterator[Reflector[Lease]]:
        transport = httpx2.MockTransport(self.handle)
        http = httpx2.AsyncClient(transport=transport, base_url="http://script", headers={"User-Agent": "t/0"})
        reflector = Reflector(Client(http), LEASES, self.store, backoff=BACKOFF, gradual=self.gradual)
        task = asyncio.create_task(reflector.run())
        await asyncio.sleep(seconds)
        yield reflector
        task.cancel()
        await asyncio.wait({task})

    @property
    def versions(self) -> list[str]:
        return [parameters.get("resourceVersion", "") for parameters in self.requests]

    @property
    def names(self) -> list[str]:
        return sorted(found.metadata.name for found in self.store.values())


def test_the_next_watch_starts_at_the_last_bookmark() -> None:
    async def scenario() -> None:
        script = Script([lambda: stream(initial(5, "a")), lambda: stream(bookmark(900))])
        async with script.running() as reflector:
            assert script.versions == ["", "5", "900"]
            assert reflector.lists == 1
            assert all(parameters["allowWatchBookmarks"] == "true" for parameters in script.requests)

    run(scenario())


@pytest.mark.parametrize("gradual", [False, True])
def test_a_store_gets_the_first_list_at_once_or_gradually(gradual: bool) -> None:
    async def scenario() -> None:
        async def slow() -> AsyncIterator[bytes]:
            yield event("ADDED", lease("a", 1))
            yield event("ADDED", lease("gone", 2))
            await asyncio.sleep(60)

        script = Script([slow, lambda: stream(initial(9, "a", "b"), open_for=60)], gradual=gradual)
        async with script.running(30) as reflector:
            assert script.names == (["a", "gone"] if gradual else [])
            assert not reflector.synced.is_set()
            # The first list is interrupted, and the second one is complete.
            await reflector.synced.wait()
            assert script.names == ["a", "b"]

    run(scenario())


def test_the_next_watch_starts_at_the_last_event_even_if_it_cannot_be_decoded() -> None:
    async def scenario() -> None:
        undecodable = lease("b", 7) | {"spec": {"holderIdentity": 7}}
        script = Script(
            [
                lambda: stream(initial(5, "a"), event("MODIFIED", lease("a", 6))),
                lambda: stream(event("ADDED", undecodable)),
                lambda: stream(event("DELETED", lease("a", 8))),
            ]
        )
        async with script.running():
            assert script.versions == ["", "6", "7", "8"]
            assert script.names == []

    run(scenario())


def test_an_object_that_cannot_be_decoded_any_more_keeps_its_last_version_until_it_is_deleted() -> None:
    async def scenario() -> None:
        broken = {"spec": {"holderIdentity": 7}}
        script = Script(
            [
                lambda: stream(initial(5, "a", "b"), event("MODIFIED", lease("a", 6) | broken), open_for=1),
                lambda: error(410, "too old"),
                lambda: stream(
                    event("ADDED", lease("a", 6) | broken), event("ADDED", lease("b", 1)), initial(8), open_for=1
                ),
                lambda: stream(event("DELETED", lease("a", 9) | broken), open_for=1),
            ]
        )
        changes: list[str] = []
        script.store.subscribe(lambda old, new: changes.append(f"{old and 'old'}-{new and 'new'}"))
        async with script.running(seconds=0.5) as reflector:
            assert script.names == ["a", "b"]
            assert script.store.get(Key("ns", "a")) == msgspec.convert(lease("a", 1), Lease)
            assert list(reflector.undecodable) == [Key("ns", "a")]
            await asyncio.sleep(2)
            assert reflector.lists == 2
            assert script.names == ["a", "b"]
            assert list(reflector.undecodable) == [Key("ns", "a")]
            await asyncio.sleep(2)
            assert script.names == ["b"]
            assert not reflector.undecodable
            assert changes == ["None-new", "None-new", "old-None"]

    run(scenario())


def test_a_recreated_object_that_cannot_be_decoded_does_not_keep_the_version_of_the_old_one() -> None:
    async def scenario() -> None:
        other = {"metadata": lease("a", 6)["metadata"] | {"uid": "another"}, "spec": {"holderIdentity": 7}}
        script = Script(
            [
                lambda: stream(initial(5, "a")),
                lambda: error(410, "too old"),
                lambda: stream(event("ADDED", other), initial(8), open_for=100),
            ]
        )
        async with script.running():
            assert script.names == []

    run(scenario())


def test_an_object_that_can_be_decoded_again_replaces_its_old_version() -> None:
    async def scenario() -> None:
        broken = lease("a", 6) | {"spec": {"holderIdentity": 7}}
        end = event("MODIFIED", broken) + event("MODIFIED", lease("a", 7))
        script = Script([lambda: stream(initial(5, "a"), end, open_for=100)])
        async with script.running() as reflector:
            assert [found.metadata.resource_version for found in script.store.values()] == ["7"]
            assert not reflector.undecodable

    run(scenario())


def test_an_object_without_readable_metadata_is_skipped() -> None:
    async def scenario() -> None:
        broken = event("ADDED", {"metadata": {"name": 7}})
        script = Script([lambda: stream(broken, initial(5, "a"), broken, event("ADDED", lease("b", 6)))])
        async with script.running() as reflector:
            assert script.names == ["a", "b"]
            assert script.versions == ["", "6"]
            assert "metadata cannot be decoded" in reflector.undecodable[Key("", "")]

    run(scenario())


def test_an_object_that_cannot_be_decoded_is_logged_once(logged: LogCapture) -> None:
    async def scenario() -> None:
        broken = event("MODIFIED", lease("a", 6) | {"spec": {"holderIdentity": 7}})
        again = event("MODIFIED", lease("a", 9) | {"spec": {"holderIdentity": 8}})
        script = Script(
            [
                lambda: stream(broken, initial(6)),
                lambda: error(410, "too old"),
                lambda: stream(broken, initial(8), again),
            ]
        )
        async with script.running() as reflector:
            assert reflector.lists == 2
        (entry,) = (entry for entry in logged.entries if entry["log_level"] != "debug")
        assert entry["log_level"] == "error"
        assert entry["error"].startswith("Lease ns/a cannot be decoded: Expected `str`, got `int`")

    run(scenario())


def test_hostile_json_in_a_watch_concerns_nobody() -> None:
    async def scenario() -> None:
        lines = [
            b'{"type":"ADDED","object":{"metadata":{"name":"odd%d","namespace":"ns","uid":"u%d",'
            b'"resourceVersion":"%d","managedFields":[{"fieldsV1":%s}]}}}\n' % (number, number, number + 10, value)
            for number, value in enumerate(STORED.values())
        ]
        half = len(lines) // 2
        script = Script([lambda: stream(*lines[:half], initial(9), *lines[half:], event("ADDED", lease("b", 99)))])
        async with script.running() as reflector:
            assert script.names == sorted(["b", *(f"odd{number}" for number in range(len(lines)))])
            assert not reflector.undecodable
            assert reflector.lists == 1

    run(scenario())


def test_a_short_outage_is_not_worth_a_warning(logged: LogCapture) -> None:
    async def scenario() -> None:
        down = lambda: error(503, "down")  # noqa: E731
        watch = lambda: stream(bookmark(6), open_for=200)  # noqa: E731
        script = Script([lambda: stream(initial(5), open_for=2), *[down] * 4, watch, lambda: stream(open_for=300)])
        async with script.running(seconds=400):
            assert script.times[:6] == [0, 2, 3, 5, 9, 17]
        assert {entry["log_level"] for entry in logged.entries} == {"debug"}

    run(scenario())


def test_a_long_outage_is_reported_once_and_so_is_its_end(logged: LogCapture) -> None:
    async def scenario() -> None:
        down = lambda: error(503, "down")  # noqa: E731
        script = Script([lambda: stream(initial(5), open_for=2), *[down] * 15, lambda: stream(open_for=300)])
        async with script.running(seconds=400):
            pass
        seen = [(entry["log_level"], entry["event"]) for entry in logged.entries if entry["log_level"] != "debug"]
        assert seen == [("warning", "no watch"), ("info", "watching again")]
        assert any("down" in entry.get("error", "") for entry in logged.entries)

    run(scenario())


def test_a_watch_that_always_breaks_at_once_is_an_outage(logged: LogCapture) -> None:
    async def scenario() -> None:
        script = Script([lambda: stream(initial(5)), *[stream] * 30])
        async with script.running(seconds=60):
            pass
        assert [entry["log_level"] for entry in logged.entries if entry["event"] == "no watch"] == ["warning"]

    run(scenario())


def test_a_server_that_cannot_stream_lists_is_not_asked_to_again() -> None:
    async def scenario() -> None:
        page = {"metadata": {"resourceVersion": "5"}, "items": [lease("a", 1)]}
        script = Script(
            [
                lambda: error(422, "sendInitialEvents is forbidden for watch unless the feature gate is on"),
                lambda: httpx2.Response(200, json=page),
                lambda: error(410, "too old"),
                lambda: httpx2.Response(200, json=page),
            ]
        )
        async with script.running() as reflector:
            assert [("sendInitialEvents" in request, "watch" in request) for request in script.requests] == [
                (True, True),
                (False, False),
                (False, True),
                (False, False),
                (False, True),
            ]
            assert reflector.lists == 2
            assert script.names == ["a"]

    run(scenario())


def test_an_interrupted_list_does_not_replace_the_store() -> None:
    async def scenario() -> None:
        script = Script(
            [
                lambda: stream(initial(5, "a", "b")),
                lambda: stream(event("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})),
                lambda: stream(event("ADDED", lease("a", 1)), bookmark(8)),
                lambda: stream(initial(9, "a", "c"), open_for=100),
            ]
        )
        async with script.running(seconds=1.5):
            assert script.versions == ["", "5", ""]
            assert script.names == ["a", "b"]
            await asyncio.sleep(2)
            assert script.names == ["a", "c"]

    run(scenario())


def test_a_change_in_the_same_read_as_the_end_of_the_list_is_applied() -> None:
    async def scenario() -> None:
        script = Script([lambda: stream(initial(5, "a") + event("ADDED", lease("b", 6)))])
        async with script.running():
            assert script.names == ["a", "b"]

    run(scenario())


def test_a_late_response_to_our_own_write_does_not_bring_back_a_deleted_object() -> None:
    async def scenario() -> None:
        ours = msgspec.convert(lease("ours", 6), Lease)
        end = event("ADDED", lease("ours", 6)) + event("DELETED", lease("ours", 7))
        script = Script([lambda: stream(initial(5, "a"), end, open_for=100)])
        async with script.running():
            script.store.upsert(ours)
            assert script.names == ["a"]

    run(scenario())


def test_lines_can_be_split_across_reads() -> None:
    async def scenario() -> None:
        text = initial(5, "a") + event("ADDED", lease("b", 6))
        script = Script([lambda: stream(*(text[i : i + 7] for i in range(0, len(text), 7)))])
        async with script.running():
            assert script.names == ["a", "b"]

    run(scenario())


def test_a_restored_server_is_listed_again_and_replaces_the_store() -> None:
    async def scenario() -> None:
        script = Script(
            [
                lambda: stream(initial(500, "a", "b"), event("MODIFIED", lease("a", 600))),
                lambda: stream(bookmark(20)),
                lambda: stream(initial(21, "a"), event("MODIFIED", lease("a", 22)), open_for=100),
            ]
        )
        async with script.running():
            assert script.versions == ["", "600", ""]
            assert [found.metadata.resource_version for found in script.store.values()] == ["22"]

    run(scenario())


def test_repeated_failures_are_retried_with_back_off_until_a_watch_succeeds() -> None:
    async def scenario() -> None:
        down, rejected = (lambda: error(503, "down")), (lambda: error(403, "RBAC"))
        script = Script(
            [
                *[down] * 3,
                lambda: stream(initial(5)),
                *[down] * 2,
                rejected,
                lambda: stream(bookmark(6)),
                down,
            ]
        )
        async with script.running(seconds=40):
            assert script.times == [0, 1, 3, 7, 7, 8, 10, 14, 14, 15]

    run(scenario())


def test_a_watch_that_repeatedly_ends_at_once_is_reopened_with_back_off() -> None:
    async def scenario() -> None:
        script = Script([lambda: stream(initial(5)), *[stream] * 20])
        async with script.running(seconds=30):
            assert script.times == [0.0, 0.0, 1.0, 3.0, 7.0, 15.0, 23.0]

    run(scenario())


def test_a_watch_that_ends_without_an_event_is_reopened_at_once() -> None:
    async def scenario() -> None:
        script = Script([lambda: stream(initial(5)), *[lambda: stream(open_for=60)] * 3])
        async with script.running(seconds=200):
            assert script.times == [0.0, 0.0, 60.0, 120.0, 180.0]

    run(scenario())


def test_a_silent_watch_is_not_abandoned_before_the_server_has_to_end_it() -> None:
    """A server sends no bookmark for a kind that does not change; 90 s of silence proved nothing."""

    async def scenario() -> None:
        script = Script([lambda: stream(initial(5)), *[lambda: stream(bookmark(6), open_for=2)] * 20])
        async with script.running(seconds=30):
            lifetimes = [int(parameters["timeoutSeconds"]) for parameters in script.requests]
            assert all(
                lifetime + 10 < timeout < lifetime + 30
                for lifetime, timeout in zip(lifetimes, script.read_timeouts, strict=True)
            )

    run(scenario())


def test_the_lifetime_of_a_watch_is_random() -> None:
    async def scenario() -> None:
        script = Script([lambda: stream(initial(5)), *[lambda: stream(bookmark(6), open_for=2)] * 40])
        async with script.running(seconds=60):
            lifetimes = {int(parameters["timeoutSeconds"]) for parameters in script.requests}
            assert len(lifetimes) > 5
            assert all(150 <= lifetime <= 300 for lifetime in lifetimes)

    run(scenario())
