"""`persist.dat`: who had imported from us, in case we die before we can tell them.

It exists only while somebody has imported something, and a clean shutdown removes it. After an unclean exit the
next instance waits until those nodes have connected to it, so that they drop what they imported. The file is
bound to the node map: under another map it says nothing.
"""

import json
import os
from collections.abc import Collection
from contextlib import suppress


class Persistence:
    def __init__(self, path: str, map_key: str) -> None:
        self._path = path
        self._map_key = map_key
        self._saved: frozenset[int] = frozenset()

    def load(self) -> frozenset[int]:
        """The nodes that imported from an instance which did not end cleanly."""
        try:
            with open(self._path, errors="replace") as file:
                text = file.read()
        except OSError:
            return frozenset()
        return importers(text, self._map_key)

    def save(self, slots: Collection[int]) -> None:
        """Called on every change, so it does nothing when nothing changed."""
        if frozenset(slots) == self._saved:
            return
        self._saved = frozenset(slots)
        if not slots:
            self.clear()
            return
        temporary = f"{self._path}.new"
        with open(temporary, "w") as file:
            json.dump({"key": self._map_key, "importers": sorted(slots)}, file)
        os.rename(temporary, self._path)

    def clear(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path)


def importers(text: str, map_key: str) -> frozenset[int]:
    """Whatever can't be understood, or was written under another node map, lists nobody."""
    try:
        content = json.loads(text)
        if content["key"] != map_key:
            return frozenset()
        return frozenset(int(slot) for slot in content["importers"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return frozenset()
