"""`persist.dat`: who had imported from us, in case we die before we can tell them.

It exists only while somebody has imported something, and a clean shutdown removes it. After an unclean exit the
next instance waits until those nodes have connected to it, so that they drop what they imported. The file is
bound to the node map: under another map it says nothing.
"""

import json
from collections.abc import Collection
from pathlib import Path


class Persistence:
    def __init__(self, path: Path, map_key: str) -> None:
        self._path = path
        self._map_key = map_key
        self._saved: frozenset[int] = frozenset()

    def load(self) -> frozenset[int]:
        """The nodes that imported from an instance which did not end cleanly."""
        try:
            text = self._path.read_text()
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
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps({"key": self._map_key, "importers": sorted(slots)}))
        temporary.rename(self._path)

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


def importers(text: str, map_key: str) -> frozenset[int]:
    """Whatever can't be understood, or was written under another node map, lists nobody."""
    try:
        content = json.loads(text)
        if content["key"] != map_key:
            return frozenset()
        return frozenset(int(slot) for slot in content["importers"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return frozenset()
