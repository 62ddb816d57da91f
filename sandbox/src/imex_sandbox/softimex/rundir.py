"""The daemon's files in `run/` of the node root: `imex.lock`, `persist.dat` and `fabric-id`."""

import fcntl
import json
import os
import re
from collections.abc import Collection
from contextlib import suppress
from typing import TextIO

from imex_sandbox.softimex.errors import StartError


def acquire_session(run: str, pid: int) -> TextIO:
    """Lock `imex.lock`: the driver allows one IMEX session per OS. The kernel unlocks it when the holder exits."""
    path = os.path.join(run, "imex.lock")
    try:
        os.makedirs(run, exist_ok=True)
        lock = open(path, "a+")  # noqa: SIM115, it stays open until the daemon exits
    except OSError as error:
        raise StartError(f"cannot create {path}: {error.strerror}. Is the node root writable?") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read(32).strip() or "unknown"
        lock.close()
        raise StartError(
            f"NV_ERR_IN_USE: Failed to allocate Imex session: process {holder} holds it. Stop that process first"
        ) from None
    lock.truncate(0)
    lock.write(f"{pid}\n")
    lock.flush()
    return lock


class PersistFile:
    """`persist.dat`: the nodes that imported memory from this daemon.

    The file exists only while a node has imported memory, and a clean shutdown removes it. After an unclean exit,
    the next instance waits until these nodes have connected to it, because only then have they dropped the imports
    from the previous instance. The file is bound to the node map: it is ignored under a different one.
    """

    def __init__(self, path: str, map_key: str) -> None:
        self._path = path
        self._map_key = map_key
        self._saved: frozenset[int] = frozenset()

    def load(self) -> frozenset[int]:
        """The importers of an instance that did not shut down cleanly."""
        try:
            with open(self._path, errors="replace") as file:
                text = file.read()
        except OSError:
            return frozenset()
        return parse_importers(text, self._map_key)

    def save(self, importers: Collection[int]) -> None:
        """Write the file if the importers changed since the last call."""
        if frozenset(importers) == self._saved:
            return
        self._saved = frozenset(importers)
        if not importers:
            self.clear()
            return
        temporary = f"{self._path}.new"
        with open(temporary, "w") as file:
            json.dump({"key": self._map_key, "importers": sorted(importers)}, file)
        os.rename(temporary, self._path)

    def clear(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path)


def parse_importers(text: str, map_key: str) -> frozenset[int]:
    """The node indexes in the file, or none if it is invalid or belongs to a different node map."""
    try:
        content = json.loads(text)
        if content["key"] != map_key:
            return frozenset()
        return frozenset(int(index) for index in content["importers"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return frozenset()


def fabric_id(run: str) -> str:
    """A random ID that names this node's files in the fabric directory, created at the first call."""
    path = os.path.join(run, "fabric-id")
    try:
        with open(path, errors="replace") as file:
            known = file.read().strip()
    except OSError:
        known = ""
    if not re.fullmatch("[0-9a-f]{16}", known):
        known = os.urandom(8).hex()
        with open(path, "w") as file:
            file.write(f"{known}\n")
    return known
