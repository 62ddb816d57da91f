"""The format of logs: cut into entries, put together again, found from the end; and how long they stay."""

import asyncio
import io
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.sandbox.kubelet import logs
from imex_dra.sandbox.kubelet.logs import (
    LONGEST_PIECE,
    Logs,
    Recorder,
    Wanted,
    cut,
    rendered,
    start_of_tail,
    wanted,
)
from imex_dra.sandbox.kubelet.views.pod import Pod, PodMeta

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def stamp(second: int) -> bytes:
    return b"2026-01-01T12:00:%02d.000000000Z" % second


def entry(second: int, text: bytes, kind: bytes = b"F") -> bytes:
    return b"%s stdout %s %s\n" % (stamp(second), kind, text)


texts = st.lists(st.sampled_from([b"a", b"\n", b" ", b"b\n", b"x" * (LONGEST_PIECE // 2)]), max_size=12)


@given(texts)
def test_whatever_is_written_in_whatever_portions_is_read_again(portions: list[bytes]) -> None:
    entries, rest = [], b""
    for portion in portions:
        pieces, rest = cut(rest + portion)
        entries += [entry(0, piece, b"F" if whole else b"P") for piece, whole in pieces]
    entries += [entry(0, rest, b"P")] if rest else []
    assert rendered(entries, Wanted())[0] == b"".join(portions)
    assert all(len(line) <= LONGEST_PIECE + 60 for line in entries)


@given(st.integers(0, 12), st.lists(st.integers(0, 40_000), max_size=10))
def test_the_tail_is_so_many_entries(lines: int, lengths: list[int]) -> None:
    entries = [entry(0, b"x" * length) for length in lengths]
    file = io.BytesIO(b"".join(entries))
    start = start_of_tail(file, lines)
    assert file.getvalue()[start:] == b"".join(entries[len(entries) - min(lines, len(entries)) :])


def test_the_time_stands_once_before_a_line_of_several_pieces() -> None:
    entries = [entry(1, b"one, ", b"P"), entry(2, b"two"), entry(3, b"three")]
    shown, at_start = rendered(entries, Wanted(timestamps=True))
    assert shown == stamp(1) + b" one, two\n" + stamp(3) + b" three\n"
    assert at_start


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, Wanted()),
        ({"tailLines": "3", "limitBytes": "10"}, Wanted(tail=3, limit=10)),
        ({"follow": "true", "timestamps": "true"}, Wanted(follow=True, timestamps=True)),
        ({"sinceSeconds": "5"}, Wanted(since=b"2026-01-01T11:59:55.000000000Z")),
        ({"sinceTime": "2026-01-01T13:00:07+01:00"}, Wanted(since=stamp(7))),
    ],
)
def test_what_the_api_server_asks(query: dict[str, str], expected: Wanted) -> None:
    assert wanted(query, NOW) == expected


def test_what_is_older_is_left_out() -> None:
    assert rendered([entry(1, b"old"), entry(2, b"new")], Wanted(since=stamp(2)))[0] == b"new\n"


async def record(log: Path, stream: str, text: bytes) -> None:
    reading, writing = os.pipe()
    recorder = Recorder(log, stream)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: recorder, os.fdopen(reading, "rb", buffering=0))
    os.write(writing, text)
    os.close(writing)
    await recorder.ended.wait()


async def test_two_streams_share_a_log_and_a_limit_cuts_it(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    await record(log, "stdout", b"one\n")
    await record(log, "stderr", b"two\n")
    assert [line.split(b" ")[1:] for line in log.read_bytes().splitlines()] == [
        [b"stdout", b"F", b"one"],
        [b"stderr", b"F", b"two"],
    ]
    parts = [part async for part in logs.read(log, Wanted(limit=6), lambda: False)]
    assert b"".join(parts) == b"one\ntw"


def pod(name: str) -> Pod:
    return Pod(PodMeta(name=name, namespace="ns", uid=f"uid-{name}"))


def test_logs_of_pods_that_nobody_knows_are_removed(tmp_path: Path) -> None:
    kept = Logs(tmp_path)
    files = {name: kept.file(pod(name), "c", 0) for name in ("kept", "swept", "removed")}
    for file in files.values():
        file.parent.mkdir(parents=True)
        file.touch()
    kept.sweep({"uid-kept", "uid-removed"})
    kept.remove(pod("removed"))
    assert [name for name, file in files.items() if file.exists()] == ["kept"]
