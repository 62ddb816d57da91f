"""Container logs: written in the CRI log format, and read with the options of `kubectl logs`.

    <root>/log/pods/<namespace>_<pod>_<uid>/<container>/<attempt>.log
    2026-01-01T12:00:00.000000000Z stdout F a line

A line that is too long, or that has no newline at its end, is stored as partial entries (`P`). Each entry is one
write to a file opened for appending, so both streams of a container share the file and readers never see half an
entry.
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

from imex_sandbox.kubelet.views.pod import Pod

MAX_ENTRY = 16 * 1024
_POLL_PERIOD = 0.1
_BATCH = 64 * 1024
_TIME = "%Y-%m-%dT%H:%M:%S"


class PodLogs:
    """The logs of a node. The logs of a pod are kept until the pod is removed from the API server."""

    def __init__(self, root: Path) -> None:
        self._directory = root / "log" / "pods"

    def file(self, pod: Pod, container: str, attempt: int) -> Path:
        return self._pod_directory(pod) / container / f"{attempt}.log"

    def remove(self, pod: Pod) -> None:
        shutil.rmtree(self._pod_directory(pod), ignore_errors=True)

    def remove_orphans(self, existing: Collection[str]) -> None:
        """Removes the logs of pods that were deleted while no kubelet ran; `existing` are pod UIDs."""
        for directory in self._directory.glob("*"):
            if directory.name.rpartition("_")[2] not in existing:
                shutil.rmtree(directory, ignore_errors=True)

    def _pod_directory(self, pod: Pod) -> Path:
        return self._directory / f"{pod.metadata.namespace}_{pod.metadata.name}_{pod.uid}"


class LogWriter(asyncio.Protocol):
    """Writes one stream of a container to its log."""

    def __init__(self, log: Path, stream: str) -> None:
        self.closed = asyncio.Event()
        self._file = log.open("ab", buffering=0)
        self._stream = stream.encode()
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        entries, self._rest = split_entries(self._rest + data)
        self._write(entries)

    def connection_lost(self, error: Exception | None) -> None:
        if self._rest:
            self._write([(self._rest, False)])
        self._file.close()
        self.closed.set()

    def _write(self, entries: list[tuple[bytes, bool]]) -> None:
        prefix = b"%s %s " % (_timestamp(time.time_ns()), self._stream)
        self._file.write(b"".join(prefix + (b"F " if full else b"P ") + text + b"\n" for text, full in entries))


def split_entries(data: bytes) -> tuple[list[tuple[bytes, bool]], bytes]:
    """Entries, each with whether it ends its line, and the remainder without a newline, which may continue."""
    *lines, rest = data.split(b"\n")
    entries: list[tuple[bytes, bool]] = []
    for line in lines:
        while len(line) > MAX_ENTRY:
            entries.append((line[:MAX_ENTRY], False))
            line = line[MAX_ENTRY:]
        entries.append((line, True))
    while len(rest) > MAX_ENTRY:
        entries.append((rest[:MAX_ENTRY], False))
        rest = rest[MAX_ENTRY:]
    return entries, rest


class LogOptions(Struct, frozen=True):
    """The part of `PodLogOptions` that selects what to read."""

    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: bytes = b""
    """A timestamp in the log's format, which sorts as text."""
    follow: bool = False
    timestamps: bool = False


def parse_log_options(query: Mapping[str, str], now: datetime) -> LogOptions:
    """Raises ValueError if a value is malformed."""
    since_time = query.get("sinceTime", "")
    since = datetime.fromisoformat(since_time) if since_time else None
    if seconds := query.get("sinceSeconds"):
        since = now - timedelta(seconds=int(seconds))
    return LogOptions(
        tail_lines=int(query["tailLines"]) if "tailLines" in query else None,
        limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
        since=since.astimezone(UTC).strftime(f"{_TIME}.%f000Z").encode() if since else b"",
        follow=query.get("follow") == "true",
        timestamps=query.get("timestamps") == "true",
    )


async def read(path: Path, options: LogOptions, is_running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """With `follow`, ends when the container has exited and everything is read."""
    left, line_start = options.limit_bytes, True
    with path.open("rb") as file:
        if options.tail_lines is not None:
            file.seek(tail_offset(file, options.tail_lines))
        while True:
            # Asked before reading: what the container wrote before it exited is then read in this round.
            more = options.follow and is_running()
            while entries := file.readlines(_BATCH):
                text, line_start = format_entries(entries, options, line_start=line_start)
                yield text if left is None else text[:left]
                left = None if left is None else left - len(text)
                if left is not None and left <= 0:
                    return
                await asyncio.sleep(0)
            if not more:
                return
            await asyncio.sleep(_POLL_PERIOD)


def format_entries(entries: list[bytes], options: LogOptions, *, line_start: bool = True) -> tuple[bytes, bool]:
    """The text to show, and whether the next entry starts a line."""
    shown = []
    for entry in entries:
        timestamp, _, tag, text = entry.split(b" ", 3)
        if timestamp < options.since:
            continue
        if options.timestamps and line_start:
            shown.append(timestamp + b" ")
        line_start = tag == b"F"
        shown.append(text if line_start else text[:-1])
    return b"".join(shown), line_start


def tail_offset(file: BinaryIO, count: int) -> int:
    """Where the last `count` entries begin."""
    position, found = file.seek(0, os.SEEK_END), -1
    while position > 0:
        begin = max(0, position - _BATCH)
        file.seek(begin)
        block = file.read(position - begin)
        while (newline := block.rfind(b"\n")) >= 0:
            found += 1
            if found == count:
                return begin + newline + 1
            block = block[:newline]
        position = begin
    return 0


def _timestamp(nanoseconds: int) -> bytes:
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime(_TIME, time.gmtime(seconds))}.{fraction:09d}Z".encode()
