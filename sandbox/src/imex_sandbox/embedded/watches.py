"""A watch: the changes of one kind, as lines of JSON, from a version on.

An object that stops matching the selector is delivered as deleted, and one that begins to match as added, as a
real API server does it.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from imex_sandbox.embedded.kinds import Kind
from imex_sandbox.embedded.selectors import Predicate
from imex_sandbox.embedded.statuses import ApiError, Json
from imex_sandbox.embedded.storage import Change, Storage, Stored

_INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Watch:
    """Lines are added by `Storage` as changes happen; `lines` hands them out in batches."""

    def __init__(
        self,
        storage: Storage,
        kind: Kind,
        namespace: str,
        matches: Predicate,
        *,
        render: Callable[[Stored], bytes] | None = None,
        bookmarks: bool = False,
    ) -> None:
        """`render`: how the client wants to see objects, if not as they are."""
        self.bookmarks = bookmarks
        self._render = render or _encoded
        self._storage = storage
        self._kind = kind
        self._namespace = namespace
        self._matches = matches
        self._pending: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        self._unsubscribe = storage.subscribe(self._on_change)

    def start(self, version: str, *, initial_events: bool) -> None:
        """Raises 410 if the history does not reach back to this version."""
        if initial_events or version in ("", "0"):
            for _, stored in self._storage.all(self._kind, self._namespace):
                if self._matches(stored.document):
                    self._add(_event("ADDED", self._render(stored)))
            if initial_events:
                self._add(self._end_of_list())
            return
        if int(version) > self._storage.version:
            raise ApiError(504, f"Too large resource version: {version}, current: {self._storage.version}")
        for change in self._storage.changes_since(int(version)):
            self._on_change(change)

    async def lines(self, timeout: float) -> bytes | None:
        """The next lines; empty after `timeout` seconds without any; None if the watch was closed."""
        if not self._pending and not self._closed:
            self._changed.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                return b""
        if not self._pending:
            return None
        batch = b"".join(self._pending)
        self._pending.clear()
        return batch

    def fail(self, error: ApiError) -> None:
        """Ends the watch with this error."""
        self._add(_event("ERROR", msgspec.json.encode(error.status)))
        self.close()

    def close(self) -> None:
        self._closed = True
        self._unsubscribe()
        self._changed.set()

    def _on_change(self, change: Change) -> None:
        if change.kind is not self._kind or self._namespace not in ("", change.key.namespace):
            return
        before = change.old is not None and self._matches(change.old.document)
        after = change.new is not None and self._matches(change.new.document)
        if after:
            self._add(_event("MODIFIED" if before else "ADDED", self._render(change.last)))
        elif before:
            self._add(_event("DELETED", self._render(change.last)))

    def _add(self, line: bytes) -> None:
        self._pending.append(line)
        self._changed.set()

    def _end_of_list(self) -> bytes:
        return self.bookmark({_INITIAL_EVENTS_END: "true"})

    def bookmark(self, annotations: dict[str, str] | None = None) -> bytes:
        """All changes up to its version were delivered."""
        metadata: Json = {"resourceVersion": str(self._storage.version)}
        if annotations:
            metadata["annotations"] = annotations
        bookmark = {"kind": self._kind.kind, "apiVersion": self._kind.api_version, "metadata": metadata}
        return _event("BOOKMARK", msgspec.json.encode(bookmark))


def _encoded(stored: Stored) -> bytes:
    return stored.encoded


def _event(type_: str, encoded: bytes) -> bytes:
    return b'{"type":"' + type_.encode() + b'","object":' + encoded + b"}\n"
