"""The local copy of a kind of object, with indexes, and who wants to know of changes.

Invariants: every index lists exactly the objects that it says, at every moment a reader can look; a
subscriber hears of each change once, after the store shows it; an object that came back under its old name
is heard of as gone and as new, because nothing of the old one holds for it.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic

from imex_dra.api.meta import Key, T, key_of

Index = Callable[[T], Iterable[Hashable]]
Subscriber = Callable[[T | None, T | None], None]
"""Called with the object before and after the change; None where it does not exist."""


class Store(Generic[T]):
    def __init__(self, **indexes: Index[T]) -> None:
        self._objects: dict[Key, T] = {}
        self._indexes = indexes
        self._entries: Mapping[str, dict[Hashable, dict[Key, None]]] = {name: {} for name in indexes}
        self._subscribers: list[Subscriber[T]] = []

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
        key = key_of(obj)
        if self._is_current(key, obj):
            return
        old = self._objects.get(key)
        if old is not None and old.metadata.uid != obj.metadata.uid:
            self._change(key, old, None)
            old = None
        self._change(key, old, obj)

    def remove(self, obj: T) -> None:
        """Forgets the object, but not a newer one of the same name."""
        key = key_of(obj)
        old = self._objects.get(key)
        if old is not None and old.metadata.uid == obj.metadata.uid:
            self._change(key, old, None)

    def replace(self, objects: Iterable[T]) -> None:
        """Takes a full list: what it lacks is gone, what it has unchanged is not news."""
        fresh = {key_of(obj): obj for obj in objects}
        for key in self._objects.keys() - fresh.keys():
            self._change(key, self._objects[key], None)
        for obj in fresh.values():
            self.upsert(obj)

    def _is_current(self, key: Key, obj: T) -> bool:
        old = self._objects.get(key)
        return (
            old is not None
            and old.metadata.uid == obj.metadata.uid
            and old.metadata.resource_version == obj.metadata.resource_version
        )

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
