"""A local cache of one kind of object, with indexes and change notifications.

Invariants:

- At every moment at which a reader can look, an index lists exactly the objects that match.
- Subscribers are notified of each change once, after the store contains it.
- For an object that was deleted and recreated under the same name they get a deletion and an addition.

A store has two sources: the watch, in the server's order, and the responses to our own writes, so that a writer
does not have to wait for the watch. A response may arrive late: the watch may already have delivered a newer
version, or the deletion. The resourceVersions of one kind are ordered numbers. Therefore a response that is not
newer than what the watch has delivered (`advance`) is ignored, and of two versions of an object the newer one is
kept.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic

from imex_dra.api.meta import Key, Object, T, key_of

Index = Callable[[T], Iterable[Hashable]]
Subscriber = Callable[[T | None, T | None], None]
"""Called with the object before and after the change; None if it did not or does not exist."""


class Store(Generic[T]):
    def __init__(self, trim: Callable[[T], T] = lambda obj: obj, /, **indexes: Index[T]) -> None:
        """`trim`: what is kept of an object; everything by default. It keeps key, UID and resourceVersion. The
        reflector trims what it decodes, so that a list never exists untrimmed.
        """
        self.trim = trim
        self._objects: dict[Key, T] = {}
        self._indexes = indexes
        self._entries: Mapping[str, dict[Hashable, dict[Key, None]]] = {name: {} for name in indexes}
        self._subscribers: list[Subscriber[T]] = []
        self._watched_version = 0

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def values(self) -> list[T]:
        return list(self._objects.values())

    def by(self, index: str, value: Hashable) -> list[T]:
        return [self._objects[key] for key in self._entries[index].get(value, ())]

    def subscribe(self, subscriber: Subscriber[T]) -> None:
        self._subscribers.append(subscriber)

    def upsert(self, obj: T) -> None:
        """Stores this version, unless a newer one, or the deletion of the object, is already known."""
        known = self._objects.get(key_of(obj))
        outdated = known is not None and _version(known) >= _version(obj)
        if not outdated and not 0 < _version(obj) <= self._watched_version:
            self._put(self.trim(obj))

    def remove(self, obj: T) -> None:
        """Removes the object, but not a recreated one of the same name."""
        key = key_of(obj)
        old = self._objects.get(key)
        if old is not None and old.metadata.uid == obj.metadata.uid:
            self._change(key, old, None)

    def advance(self, version: str) -> None:
        """The watch has delivered everything up to this version."""
        self._watched_version = version_number(version)

    def replace(self, objects: Iterable[T], version: str = "") -> None:
        """Takes over a complete list. Subscribers are notified of the differences only.

        Objects that we wrote after the list was made are newer than it and stay. If the list is older than what
        the watch delivered before, etcd was restored from a backup: then the list is right and nothing else
        stays.
        """
        listed = {key_of(obj): obj for obj in objects}
        restored = version_number(version) < self._watched_version or not version
        self.advance(version)
        newer = {
            key for key, obj in self._objects.items() if not restored and _version(obj) > self._watched_version
        }
        for key in self._objects.keys() - listed.keys() - newer:
            self._change(key, self._objects[key], None)
        for key, obj in listed.items():
            if key not in newer:
                self._put(obj)

    def _put(self, obj: T) -> None:
        key = key_of(obj)
        old = self._objects.get(key)
        if old is not None and old.metadata.uid != obj.metadata.uid:
            self._change(key, old, None)
            old = None
        if old is None or old.metadata.resource_version != obj.metadata.resource_version:
            self._change(key, old, obj)

    def _change(self, key: Key, old: T | None, new: T | None) -> None:
        self._remove_from_indexes(key, old)
        if new is None:
            del self._objects[key]
        else:
            self._objects[key] = new
            self._add_to_indexes(key, new)
        for subscriber in self._subscribers:
            subscriber(old, new)

    def _add_to_indexes(self, key: Key, obj: T) -> None:
        for name, index in self._indexes.items():
            for value in index(obj):
                self._entries[name].setdefault(value, {})[key] = None

    def _remove_from_indexes(self, key: Key, obj: T | None) -> None:
        if obj is None:
            return
        for name, index in self._indexes.items():
            entries = self._entries[name]
            for value in index(obj):
                if keys := entries.get(value):
                    keys.pop(key, None)
                    if not keys:
                        del entries[value]


def version_number(version: str) -> int:
    """0 if there is no version."""
    return int(version) if version.isdecimal() else 0


def _version(obj: Object) -> int:
    return version_number(obj.metadata.resource_version)
