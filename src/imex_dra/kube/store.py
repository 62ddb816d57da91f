"""The local copy of a kind of object, with indexes, and who wants to know of changes.

Invariants: every index lists exactly the objects that it says, at every moment a reader can look; a
subscriber hears of each change once, after the store shows it; an object that came back under its old name
is heard of as gone and as new, because nothing of the old one holds for it.

Two sources fill a store: the watch, in the server's order, and the answers to our own writes, so that whoever
wrote need not wait for the watch to read it. An answer may be late: by then the watch may have shown a newer
version, or that the object is gone. Resource versions of one kind are numbers in the server's order, so an
answer no newer than what the watch has reached (`advance`) tells nothing and is dropped, and under one name the
newest version stays.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic

from imex_dra.api.meta import Key, Object, T, key_of

Index = Callable[[T], Iterable[Hashable]]
Subscriber = Callable[[T | None, T | None], None]
"""Called with the object before and after the change; None where it does not exist."""


class Store(Generic[T]):
    def __init__(self, **indexes: Index[T]) -> None:
        self._objects: dict[Key, T] = {}
        self._indexes = indexes
        self._entries: Mapping[str, dict[Hashable, dict[Key, None]]] = {name: {} for name in indexes}
        self._subscribers: list[Subscriber[T]] = []
        self._reached = 0

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
        """Takes this version, unless a newer one, or the object's end, was seen already."""
        known = self._objects.get(key_of(obj))
        overtaken = known is not None and _version(known) >= _version(obj)
        if not overtaken and not 0 < _version(obj) <= self._reached:
            self._put(obj)

    def remove(self, obj: T) -> None:
        """Forgets the object, but not a newer one of the same name."""
        key = key_of(obj)
        old = self._objects.get(key)
        if old is not None and old.metadata.uid == obj.metadata.uid:
            self._change(key, old, None)

    def advance(self, version: str) -> None:
        """The watch has shown everything up to this version."""
        self._reached = number(version)

    def replace(self, objects: Iterable[T], version: str = "") -> None:
        """Takes a full list of that version: what it lacks is gone, what it has unchanged is not news.

        What we wrote since is newer than the list and stays. But a version before the one that the watch had
        reached means that the server lost its memory (a restored backup), and its word counts.
        """
        fresh = {key_of(obj): obj for obj in objects}
        went_back = number(version) < self._reached or not version
        self.advance(version)
        newer = {key for key, obj in self._objects.items() if not went_back and _version(obj) > self._reached}
        for key in self._objects.keys() - fresh.keys() - newer:
            self._change(key, self._objects[key], None)
        for key, obj in fresh.items():
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
        self._unlist(key, old)
        if new is None:
            del self._objects[key]
        else:
            self._objects[key] = new
            self._list(key, new)
        for subscriber in self._subscribers:
            subscriber(old, new)

    def _list(self, key: Key, obj: T) -> None:
        for name, index in self._indexes.items():
            for value in index(obj):
                self._entries[name].setdefault(value, {})[key] = None

    def _unlist(self, key: Key, obj: T | None) -> None:
        if obj is None:
            return
        for name, index in self._indexes.items():
            entries = self._entries[name]
            for value in index(obj):
                if keys := entries.get(value):
                    keys.pop(key, None)
                    if not keys:
                        del entries[value]


def number(version: str) -> int:
    """The place of a resource version in the server's order; 0 if it has none."""
    return int(version) if version.isdecimal() else 0


def _version(obj: Object) -> int:
    return number(obj.metadata.resource_version)
