"""Keeps a store equal to what the API server has, for as long as it runs.

List, then watch from there; a watch that ends is taken up where it stopped; where the server no longer
remembers that point (410, as a status or as an event), list again and tell the store only of differences.
Where the server can stream the list (`sendInitialEvents`), no list request is made at all.

Invariants: the resource version only moves on, and only after the store has taken the change; a server whose
versions go back was restored from a backup, and is listed anew; a server that fails again and again is asked
ever more slowly; nothing that the server sends ends the loop.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Generic, NoReturn

import msgspec
import structlog
from msgspec import Struct

from imex_dra.api.meta import AnnotatedMeta, Resource, T
from imex_dra.base.chance import fraction
from imex_dra.base.errors import Gone, ImexError, Invalid, Unavailable
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import EVERYTHING, Client, Lines, Selection
from imex_dra.kube.status import Status, classify
from imex_dra.kube.store import Store, number

log = structlog.get_logger()

_INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_QUIET = 1.0


class WatchEvent(Struct):
    type: str
    object: msgspec.Raw


class Bookmark(Struct):
    metadata: AnnotatedMeta


_events = msgspec.json.Decoder(WatchEvent)
_bookmarks = msgspec.json.Decoder(Bookmark)
_statuses = msgspec.json.Decoder(Status)


class Reflector(Generic[T]):
    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        store: Store[T],
        *,
        selection: Selection = EVERYTHING,
        backoff: Backoff | None = None,
        inactivity: float = 90.0,
        lifetime: float = 300.0,
        page_size: int = 500,
    ) -> None:
        self.synced = asyncio.Event()
        self.error: ImexError | None = None
        self.lists = 0
        self._client = client
        self._resource = resource
        self._store = store
        self._selection = selection
        self._backoff = backoff or Backoff(0.2, 30.0)
        self._inactivity = inactivity
        self._lifetime = lifetime
        self._page_size = page_size
        self._decoder = msgspec.json.Decoder(resource.type)
        self._version = ""
        self._followed: float | None = None
        self._streams_lists = True
        self._log = log.bind(resource=resource.plural)

    async def run(self) -> NoReturn:
        failures = 0
        while True:
            before = self._version
            error: ImexError | None = None
            self._followed = None
            try:
                await self._cycle()
            except Gone as expired:
                self._version, error = "", expired
            except ImexError as failure:
                error = failure
            except msgspec.MsgspecError as nonsense:
                error = Unavailable(f"watch of {self._resource.plural}: what came is no JSON: {nonsense}")
            progressed = self._version not in ("", before) or self._lasted()
            failures = 0 if progressed else failures + 1
            self._note(error)
            if failures:
                await asyncio.sleep(self._backoff.delay(failures))

    def _lasted(self) -> bool:
        """A watch that was there for a while is no failure, even if it brought nothing."""
        return self._followed is not None and asyncio.get_running_loop().time() - self._followed > _QUIET

    def _follows(self) -> None:
        self._followed = asyncio.get_running_loop().time()
        self.error = None

    async def _cycle(self) -> None:
        if not self._version:
            if self._streams_lists and await self._watch_from_nothing():
                return
            await self._list()
        async with self._watch(resourceVersion=self._version) as lines:
            self._follows()
            await self._consume(lines)

    async def _watch_from_nothing(self) -> bool:
        """False if this server can't stream a list."""
        initial: dict[str, str] = {
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
        }
        try:
            async with self._watch(**initial) as lines:
                await self._fill_from(lines)
                self._follows()
                await self._consume(lines)
        except Invalid:
            if self._version:
                raise
            self._streams_lists = False
        return self._streams_lists

    async def _fill_from(self, lines: AsyncIterator[Lines]) -> None:
        objects: list[T] = []
        async for batch in lines:
            for position, line in enumerate(batch):
                if not line:
                    continue
                event = _events.decode(line)
                if event.type == "BOOKMARK":
                    bookmark = _bookmarks.decode(event.object)
                    if _INITIAL_EVENTS_END in bookmark.metadata.annotations:
                        self._filled(objects, bookmark.metadata.resource_version)
                        self._take(batch[position + 1 :])
                        return
                elif event.type == "ERROR":
                    raise _error(event)
                elif (obj := self._decode(event.object)) is not None:
                    objects.append(obj)

    async def _list(self) -> None:
        objects: list[T] = []
        version = ""
        async for page in self._client.pages(self._resource, self._selection, limit=str(self._page_size)):
            objects += [obj for raw in page.items or () if (obj := self._decode(raw)) is not None]
            version = page.metadata.resource_version
        self._filled(objects, version)

    def _filled(self, objects: list[T], version: str) -> None:
        self._store.replace(objects, version)
        self._version = version
        self.lists += 1
        self.synced.set()

    def _watch(self, **parameters: str) -> AbstractAsyncContextManager[AsyncIterator[Lines]]:
        lifetime = self._lifetime * (0.5 + 0.5 * fraction())
        return self._client.watch(
            self._resource,
            self._selection,
            inactivity=self._inactivity,
            timeoutSeconds=str(max(1, int(lifetime))),
            **parameters,
        )

    async def _consume(self, lines: AsyncIterator[Lines]) -> None:
        async for batch in lines:
            self._take(batch)

    def _take(self, batch: Lines) -> None:
        for line in batch:
            if line:
                self._apply(_events.decode(line))

    def _apply(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            raise _error(event)
        obj = None if event.type == "BOOKMARK" else self._decode(event.object)
        version = (obj or _bookmarks.decode(event.object)).metadata.resource_version
        if number(version) < number(self._version):
            raise Gone(f"watch: version {version} came after {self._version}: the server's past has changed")
        if obj is not None and event.type == "DELETED":
            self._store.remove(obj)
        elif obj is not None:
            self._store.upsert(obj)
        self._version = version
        self._store.advance(version)

    def _decode(self, raw: msgspec.Raw) -> T | None:
        """None for an object of a shape that we don't know, from a newer version, say: it is left alone."""
        try:
            return self._decoder.decode(raw)
        except msgspec.ValidationError as error:
            name = _bookmarks.decode(raw).metadata.name
            self._log.error("an object can't be read and is ignored", name=name, error=str(error))
            return None

    def _note(self, error: ImexError | None) -> None:
        if error is not None and str(error) != str(self.error):
            self._log.warning("watch interrupted", error=str(error))
        self.error = error


def _error(event: WatchEvent) -> ImexError:
    status = _statuses.decode(event.object)
    return classify(status.code, status.reason, f"watch: {status.message}")
