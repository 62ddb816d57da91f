"""Versioned objects in memory, and the history that watches read.

Like etcd behind an API server: one version counter for all kinds, every change gets the next version, and the
history is bounded: a watch that asks for an older version gets 410. Objects are never changed in place.
"""

from collections import deque
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import NamedTuple

import msgspec

from imex_sandbox.embedded.kinds import Kind
from imex_sandbox.embedded.statuses import Json, expired

_encode = msgspec.json.Encoder().encode


class Key(NamedTuple):
    namespace: str
    name: str


class Stored(NamedTuple):
    document: Json
    encoded: bytes
    """The same as JSON. Encoded once, because every watch gets it."""

    @property
    def version(self) -> int:
        return int(self.document["metadata"]["resourceVersion"])


class Change(NamedTuple):
    version: int
    kind: Kind
    key: Key
    old: Stored | None
    new: Stored | None
    """None for a deletion."""
    last: Stored
    """What a watch delivers: for a deletion, the last content with the version of the deletion."""


class Storage:
    def __init__(self, *, history: int = 10_000) -> None:
        self.version = 1
        self._objects: dict[Kind, dict[Key, Stored]] = {}
        self._sorted: dict[Kind, list[tuple[Key, Stored]]] = {}
        """Of kinds that have not changed since they were last listed."""
        self._history: deque[Change] = deque(maxlen=history)
        self._compacted = 1
        """Changes up to this version are no longer in the history."""
        self._subscribers: dict[object, Callable[[Change], None]] = {}

    def get(self, kind: Kind, key: Key) -> Stored | None:
        return self._objects.get(kind, {}).get(key)

    def all(self, kind: Kind, namespace: str = "") -> list[tuple[Key, Stored]]:
        """Sorted by key, as etcd does."""
        found = self._sorted.get(kind)
        if found is None:
            found = self._sorted[kind] = sorted(self._objects.get(kind, {}).items(), key=itemgetter(0))
        return [one for one in found if one[0].namespace == namespace] if namespace else found.copy()

    def all_at(self, version: int, kind: Kind, namespace: str = "") -> list[tuple[Key, Stored]]:
        """As they were at this version. Raises 410 if the history does not reach back to it."""
        if version == self.version:
            return self.all(kind, namespace)
        found = dict(self.all(kind, namespace))
        for change in reversed(self.changes_since(version)):
            if change.kind == kind and namespace in ("", change.key.namespace):
                if change.old is None:
                    found.pop(change.key, None)
                else:
                    found[change.key] = change.old
        return sorted(found.items(), key=itemgetter(0))

    def content_of(self, namespace: str) -> list[tuple[Kind, Key]]:
        return [
            (kind, key) for kind, found in self._objects.items() for key in found if key.namespace == namespace
        ]

    def put(self, kind: Kind, key: Key, document: Json) -> Stored:
        """Stores a new version. The caller gives the document away: it must not change it afterwards."""
        objects = self._objects.setdefault(kind, {})
        old, new = objects.get(key), self._next(document)
        objects[key] = new
        self._sorted.pop(kind, None)
        self._record(Change(self.version, kind, key, old, new, new))
        return new

    def remove(self, kind: Kind, key: Key) -> Stored:
        old = self._objects[kind].pop(key)
        last = self._next(old.document)
        self._sorted.pop(kind, None)
        self._record(Change(self.version, kind, key, old, None, last))
        return last

    def changes_since(self, version: int) -> list[Change]:
        if version < self._compacted:
            raise expired(f"too old resource version: {version} ({self._compacted})")
        return [change for change in self._history if change.version > version]

    def compact(self) -> None:
        """Forgets the history, as etcd does every few minutes."""
        self._history.clear()
        self._compacted = self.version

    def subscribe(self, subscriber: Callable[[Change], None]) -> Callable[[], None]:
        """Returns how to unsubscribe."""
        token = object()
        self._subscribers[token] = subscriber

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)

        return unsubscribe

    def _next(self, document: Json) -> Stored:
        self.version += 1
        metadata = {**document["metadata"], "resourceVersion": str(self.version)}
        document = {**document, "metadata": metadata}
        return Stored(document, _encode(document))

    def _record(self, change: Change) -> None:
        if len(self._history) == self._history.maxlen:
            self._compacted = self._history[0].version
        self._history.append(change)
        for subscriber in list(self._subscribers.values()):
            subscriber(change)


def owners(document: Json) -> Iterable[str]:
    return [reference["uid"] for reference in document["metadata"].get("ownerReferences") or ()]
