"""Keeps a store up to date with the API server: list, then watch.

If the server can stream the list (`sendInitialEvents`), one watch does both. A watch that ends is resumed at its
last resourceVersion. If the server no longer has that version (410, as a response or as an event), the reflector
lists again and the store notifies subscribers of the differences only.

Invariants:

- The resourceVersion advances only after the store has applied the change.
- If resourceVersions go backwards, etcd was restored from a backup: the reflector lists again.
- Repeated failures are retried with back-off, and nothing that the server sends ends the loop.
- An object that cannot be decoded concerns only itself. If an earlier version of it could be decoded, the store
  keeps that version, as if the watch lagged behind for this object: every decision is safe with an old version,
  because watches do lag, but a deletion counts as evidence. (A member leaves when its Node is deleted.)
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Generic, NoReturn

import msgspec
import structlog
from msgspec import Struct

from imex_dra.api.meta import AnnotatedMeta, Key, Resource, T, key_of
from imex_dra.api.metrics import WATCH_RESTARTS
from imex_dra.base.errors import Gone, ImexError, Invalid, Unavailable, Undecodable
from imex_dra.kube.backoff import Backoff, random_fraction
from imex_dra.kube.client import EVERYTHING, Client, Lines, Selection
from imex_dra.kube.decoding import Identity, ObjectDecoder, decode, identity_of
from imex_dra.kube.outage import Outage
from imex_dra.kube.status import Status, classify
from imex_dra.kube.store import Store, version_number

log = structlog.get_logger()

_INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_HEALTHY_AFTER = 1.0
"""Seconds. A watch that was open for longer is not a failure, even if it delivered nothing."""


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
        lifetime: float = 300.0,
        grace: float = 15.0,
        page_size: int = 500,
        gradual: bool = False,
    ) -> None:
        """`lifetime`: seconds after which the server ends a watch, at the latest. `grace`: seconds after that in
        which data is still awaited before the watch is abandoned. `gradual`: the store gets the objects of the
        first list while it is read, not at its end. For stores that are not read before `synced`: to add ten
        thousand objects at once takes so long that a Lease may not be renewed meanwhile.
        """
        self.synced = asyncio.Event()
        self.error: ImexError | None = None
        """Why there is no watch at the moment."""
        self.lists = 0
        self.undecodable: dict[Key, str] = {}
        """Objects that exist and cannot be decoded, with the cause."""
        self._client = client
        self._resource = resource
        self._store = store
        self._selection = selection
        self._backoff = backoff or Backoff(0.2, 30.0)
        self._lifetime = lifetime
        self._grace = grace
        self._page_size = page_size
        self._gradual = gradual
        self._decoder = ObjectDecoder(resource)
        self._version = ""
        self._watching_since: float | None = None
        self._streams_lists = True
        self._log = log.bind(resource=resource.plural)
        self._outage = Outage(self._was_healthy, self._log)

    async def run(self) -> NoReturn:
        failures = 0
        try:
            while True:
                before = self._version
                error = await self._list_and_watch_once()
                progressed = self._version not in ("", before) or self._was_healthy()
                failures = 0 if progressed else failures + 1
                self._client.metrics.count(WATCH_RESTARTS, type(error).__name__ if error else "Ended")
                self._watching_since = None
                if failures or error:
                    self._interrupted(error)
                if failures:
                    await asyncio.sleep(self._backoff.delay(failures))
        finally:
            self._outage.close()

    async def _list_and_watch_once(self) -> ImexError | None:
        try:
            await self._list_and_watch()
        except Gone as expired:
            self._version = ""
            return expired
        except ImexError as failure:
            return failure
        except ValueError as malformed:
            return Unavailable(f"watch of {self._resource.plural}: malformed response: {malformed}")
        return None

    def _was_healthy(self) -> bool:
        since = self._watching_since
        return since is not None and asyncio.get_running_loop().time() - since > _HEALTHY_AFTER

    def _watch_started(self) -> None:
        self._watching_since = asyncio.get_running_loop().time()
        self.error = None
        self._outage.ended()

    def _interrupted(self, error: ImexError | None) -> None:
        self.error = error or Unavailable(f"watch of {self._resource.plural}: the server ends it at once")
        self._outage.interrupted(self.error)

    async def _list_and_watch(self) -> None:
        if not self._version:
            if self._streams_lists and await self._watch_with_list():
                return
            await self._list()
        async with self._watch(resourceVersion=self._version) as lines:
            self._watch_started()
            await self._consume(lines)

    async def _watch_with_list(self) -> bool:
        """False if the server cannot stream a list."""
        initial: dict[str, str] = {
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
        }
        try:
            async with self._watch(**initial) as lines:
                await self._receive_list(lines)
                self._watch_started()
                await self._consume(lines)
        except Invalid:
            if self._version:
                raise
            self._streams_lists = False
        return self._streams_lists

    async def _receive_list(self, lines: AsyncIterator[Lines]) -> None:
        found: list[T | Identity] = []
        async for batch in lines:
            for position, line in enumerate(batch):
                if not line:
                    continue
                event = decode(_events, line)
                if event.type == "BOOKMARK":
                    bookmark = decode(_bookmarks, event.object)
                    if _INITIAL_EVENTS_END in bookmark.metadata.annotations:
                        self._replace(found, bookmark.metadata.resource_version)
                        # The same read may contain changes that follow the list.
                        self._apply_lines(batch[position + 1 :])
                        return
                elif event.type == "ERROR":
                    raise _error(event)
                else:
                    found.append(self._listed(event.object))

    async def _list(self) -> None:
        found: list[T | Identity] = []
        version = ""
        async for page in self._client.pages(self._resource, self._selection, limit=str(self._page_size)):
            found += [self._listed(raw) for raw in page.items or ()]
            version = page.metadata.resource_version
        self._replace(found, version)

    def _listed(self, raw: msgspec.Raw) -> T | Identity:
        found = self._decode(raw)
        if self._gradual and not self.synced.is_set() and not isinstance(found, Identity):
            self._store.upsert(found)
        return found

    def _replace(self, found: list[T | Identity], version: str) -> None:
        undecodable = [one for one in found if isinstance(one, Identity)]
        kept = filter(None, map(self._last_decodable, undecodable))
        self._store.replace([*(one for one in found if not isinstance(one, Identity)), *kept], version)
        self.undecodable = {one.key: self.undecodable.get(one.key, "") for one in undecodable}
        self._version = version
        self.lists += 1
        self.synced.set()

    def _watch(self, **parameters: str) -> AbstractAsyncContextManager[AsyncIterator[Lines]]:
        # Watches that were opened together, after a restart of the API server, must not all end together.
        lifetime = self._lifetime * (0.5 + 0.5 * random_fraction())
        return self._client.watch(
            self._resource,
            self._selection,
            # Only the server's promise to end the watch is reliable. Bookmarks come about once a minute, but not
            # for a kind of which the server has seen no change: two minutes of silence are ordinary.
            inactivity=lifetime + self._grace,
            timeoutSeconds=str(max(1, int(lifetime))),
            **parameters,
        )

    async def _consume(self, lines: AsyncIterator[Lines]) -> None:
        async for batch in lines:
            self._apply_lines(batch)

    def _apply_lines(self, batch: Lines) -> None:
        for line in batch:
            if line:
                self._apply(decode(_events, line))

    def _apply(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            raise _error(event)
        found = decode(_bookmarks, event.object) if event.type == "BOOKMARK" else self._decode(event.object)
        version = found.resource_version if isinstance(found, Identity) else found.metadata.resource_version
        if isinstance(found, Identity) and not version:
            return  # not even its metadata can be decoded
        if version_number(version) < version_number(self._version):
            raise Gone(f"watch: resourceVersion {version} follows {self._version}: etcd was restored")
        if isinstance(found, Identity):
            self._apply_undecodable(event.type, found)
        elif not isinstance(found, Bookmark):
            self._store.remove(found) if event.type == "DELETED" else self._store.upsert(found)
        self._version = version
        self._store.advance(version)

    def _apply_undecodable(self, type_: str, identity: Identity) -> None:
        if type_ == "DELETED":
            self.undecodable.pop(identity.key, None)
            if known := self._last_decodable(identity):
                self._store.remove(known)

    def _decode(self, raw: msgspec.Raw) -> T | Identity:
        """The object, or the identity of one that cannot be decoded."""
        try:
            obj = self._store.trim(self._decoder.decode(raw))
        except Undecodable as error:
            identity = identity_of(raw) or Identity()
            if identity.key not in self.undecodable:
                self._log.error("skipping an object that cannot be decoded", error=str(error))
            self.undecodable[identity.key] = str(error)
            return identity
        self.undecodable.pop(key_of(obj), None)
        return obj

    def _last_decodable(self, identity: Identity) -> T | None:
        known = self._store.get(identity.key)
        return known if known is not None and known.metadata.uid == identity.uid else None


def _error(event: WatchEvent) -> ImexError:
    status = decode(_statuses, event.object)
    return classify(status.code, status.reason, f"watch: {status.message}")
