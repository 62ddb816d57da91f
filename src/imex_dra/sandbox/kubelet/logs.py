"""What containers wrote: kept as real nodes keep it, and read as `kubectl logs` asks.

    <root>/log/pods/<namespace>_<pod>_<uid>/<container>/<attempt>.log
    2026-01-01T12:00:00.000000000Z stdout F a line

A line that is too long, or has no end, is kept in pieces (`P`). Every entry is one write at the end of the file,
so the two streams of a container share it, and a reader never sees half of one.
"""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from imex_dra.sandbox.kubelet.views.pod import Pod

LONGEST_PIECE = 16 * 1024
_PERIOD = 0.1
_BATCH = 64 * 1024
_TIME = "%Y-%m-%dT%H:%M:%S"


class Logs:
    """The logs of a node; those of a pod stay until nobody knows the pod any more."""

    def __init__(self, root: Path) -> None:
        self._directory = root / "log" / "pods"

    def file(self, pod: Pod, container: str, attempt: int) -> Path:
        return self._of(pod) / container / f"{attempt}.log"

    def remove(self, pod: Pod) -> None:
        shutil.rmtree(self._of(pod), ignore_errors=True)

    def sweep(self, known: Collection[str]) -> None:
        """Of pods that went while nobody looked."""
        for directory in self._directory.glob("*"):
            if directory.name.rpartition("_")[2] not in known:
                shutil.rmtree(directory, ignore_errors=True)

    def _of(self, pod: Pod) -> Path:
        return self._directory / f"{pod.metadata.namespace}_{pod.metadata.name}_{pod.uid}"


class Recorder(asyncio.Protocol):
    """Takes down one stream of a container."""

    def __init__(self, log: Path, stream: str) -> None:
        self.ended = asyncio.Event()
        self._file = log.open("ab", buffering=0)
        self._stream = stream.encode()
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        pieces, self._rest = cut(self._rest + data)
        self._write(pieces)

    def connection_lost(self, error: Exception | None) -> None:
        if self._rest:
            self._write([(self._rest, False)])
        self._file.close()
        self.ended.set()

    def _write(self, pieces: list[tuple[bytes, bool]]) -> None:
        head = b"%s %s " % (_stamp(time.time_ns()), self._stream)
        self._file.write(b"".join(head + (b"F " if whole else b"P ") + piece + b"\n" for piece, whole in pieces))


def cut(text: bytes) -> tuple[list[tuple[bytes, bool]], bytes]:
    """Pieces, each with whether a line ends there, and the rest, which may go on."""
    *lines, rest = text.split(b"\n")
    pieces: list[tuple[bytes, bool]] = []
    for line in lines:
        while len(line) > LONGEST_PIECE:
            pieces.append((line[:LONGEST_PIECE], False))
            line = line[LONGEST_PIECE:]
        pieces.append((line, True))
    while len(rest) > LONGEST_PIECE:
        pieces.append((rest[:LONGEST_PIECE], False))
        rest = rest[LONGEST_PIECE:]
    return pieces, rest


class Wanted(Struct, frozen=True):
    """As the API server asks for it."""

    tail: int | None = None
    limit: int | None = None
    since: bytes = b""
    follow: bool = False
    timestamps: bool = False


def wanted(query: Mapping[str, str], now: datetime) -> Wanted:
    """Raises ValueError if it can't be understood."""
    since = query.get("sinceTime", "")
    begin = datetime.fromisoformat(since) if since else None
    if seconds := query.get("sinceSeconds"):
        begin = now - timedelta(seconds=int(seconds))
    return Wanted(
        tail=int(query["tailLines"]) if "tailLines" in query else None,
        limit=int(query["limitBytes"]) if "limitBytes" in query else None,
        since=begin.astimezone(UTC).strftime(f"{_TIME}.%f000Z").encode() if begin else b"",
        follow=query.get("follow") == "true",
        timestamps=query.get("timestamps") == "true",
    )


async def read(path: Path, what: Wanted, goes_on: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Follows, if that is wanted, while the container goes on."""
    left, at_start = what.limit, True
    with path.open("rb") as file:
        if what.tail is not None:
            file.seek(start_of_tail(file, what.tail))
        while True:
            more = what.follow and goes_on()
            while lines := file.readlines(_BATCH):
                text, at_start = rendered(lines, what, at_start=at_start)
                yield text if left is None else text[:left]
                left = None if left is None else left - len(text)
                if left is not None and left <= 0:
                    return
                await asyncio.sleep(0)
            if not more:
                return
            await asyncio.sleep(_PERIOD)


def rendered(entries: list[bytes], what: Wanted, *, at_start: bool = True) -> tuple[bytes, bool]:
    """What is shown of them, and whether the next piece begins a line."""
    shown = []
    for entry in entries:
        stamp, _, kind, piece = entry.split(b" ", 3)
        if stamp < what.since:
            continue
        if what.timestamps and at_start:
            shown.append(stamp + b" ")
        at_start = kind == b"F"
        shown.append(piece if at_start else piece[:-1])
    return b"".join(shown), at_start


def start_of_tail(file: BinaryIO, lines: int) -> int:
    """Where the last entries begin."""
    position, found = file.seek(0, os.SEEK_END), -1
    while position > 0:
        begin = max(0, position - _BATCH)
        file.seek(begin)
        block = file.read(position - begin)
        while (newline := block.rfind(b"\n")) >= 0:
            found += 1
            if found == lines:
                return begin + newline + 1
            block = block[:newline]
        position = begin
    return 0


def _stamp(nanoseconds: int) -> bytes:
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime(_TIME, time.gmtime(seconds))}.{fraction:09d}Z".encode()
