"""Container logs are split into entries, put together again, read from the end, and removed with their pod."""

import asyncio
import io
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_sandbox.kubelet import logs
from imex_sandbox.kubelet.logs import (
    MAX_ENTRY,
    LogOptions,
    LogWriter,
    PodLogs,
    format_entries,
    parse_log_options,
    split_entries,
    tail_offset,
)
from imex_sandbox.kubelet.views.pod import Pod, PodMeta

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def timestamp(second: int) -> bytes:
    return b"2026-01-01T12:00:%02d.000000000Z" % second


def entry(second: int, text: bytes, tag: bytes = b"F") -> bytes:
    return b"%s stdout %s %s\n" % (timestamp(second), tag, text)


chunks_of_output = st.lists(st.sampled_from([b"a", b"\n", b" ", b"b\n", b"x" * (MAX_ENTRY // 2)]), max_size=12)


@given(chunks_of_output)
def test_output_is_read_as_it_was_written_whatever_its_chunks(chunks: list[bytes]) -> None:
    entries, rest = [], b""
    for chunk in chunks:
        split, rest = split_entries(rest + chunk)
        entries += [entry(0, text, b"F" if full else b"P") for text, full in split]
    entries += [entry(0, rest, b"P")] if rest else []
    assert format_entries(entries, LogOptions())[0] == b"".join(chunks)
    assert all(len(line) <= MAX_ENTRY + 60 for line in entries)


@given(st.integers(0, 12), st.lists(st.integers(0, 40_000), max_size=10))
def test_the_tail_has_the_requested_number_of_entries(count: int, lengths: list[int]) -> None:
    entries = [entry(0, b"x" * length) for length in lengths]
    file = io.BytesIO(b"".join(entries))
    start = tail_offset(file, count)
    assert file.getvalue()[start:] == b"".join(entries[len(entries) - min(count, len(entries)) :])


def test_a_line_of_several_entries_has_one_timestamp() -> None:
    entries = [entry(1, b"one, ", b"P"), entry(2, b"two"), entry(3, b"three")]
    text, line_start = format_entries(entries, LogOptions(timestamps=True))
    assert text == timestamp(1) + b" one, two\n" + timestamp(3) + b" three\n"
    assert line_start


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, LogOptions()),
        ({"tailLines": "3", "limitBytes": "10"}, LogOptions(tail_lines=3, limit_bytes=10)),
        ({"follow": "true", "timestamps": "true"}, LogOptions(follow=True, timestamps=True)),
        ({"sinceSeconds": "5"}, LogOptions(since=b"2026-01-01T11:59:55.000000000Z")),
        ({"sinceTime": "2026-01-01T13:00:07+01:00"}, LogOptions(since=timestamp(7))),
    ],
)
def test_log_options_are_parsed_from_the_query_of_the_api_server(
    query: dict[str, str], expected: LogOptions
) -> None:
    assert parse_log_options(query, NOW) == expected


def test_entries_before_since_are_omitted() -> None:
    assert format_entries([entry(1, b"old"), entry(2, b"new")], LogOptions(since=timestamp(2)))[0] == b"new\n"


async def write(log: Path, stream: str, text: bytes) -> None:
    reading, writing = os.pipe()
    writer = LogWriter(log, stream)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: writer, os.fdopen(reading, "rb", buffering=0))
    os.write(writing, text)
    os.close(writing)
    await writer.closed.wait()


async def test_both_streams_share_a_log_and_the_byte_limit_truncates_it(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    await write(log, "stdout", b"one\n")
    await write(log, "stderr", b"two\n")
    assert [line.split(b" ")[1:] for line in log.read_bytes().splitlines()] == [
        [b"stdout", b"F", b"one"],
        [b"stderr", b"F", b"two"],
    ]
    parts = [part async for part in logs.read(log, LogOptions(limit_bytes=6), lambda: False)]
    assert b"".join(parts) == b"one\ntw"


def make_pod(name: str) -> Pod:
    return Pod(PodMeta(name=name, namespace="ns", uid=f"uid-{name}"))


def test_logs_are_removed_with_their_pod_and_orphans_at_the_start(tmp_path: Path) -> None:
    pod_logs = PodLogs(tmp_path)
    files = {name: pod_logs.file(make_pod(name), "c", 0) for name in ("kept", "orphan", "removed")}
    for file in files.values():
        file.parent.mkdir(parents=True)
        file.touch()
    pod_logs.remove_orphans({"uid-kept", "uid-removed"})
    pod_logs.remove(make_pod("removed"))
    assert [name for name, file in files.items() if file.exists()] == ["kept"]
