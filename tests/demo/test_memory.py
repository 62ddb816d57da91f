"""What the demo's pods do with memory, as processes on two nodes with real daemons."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from imex_dra.sandbox.demo import checks
from imex_dra.sandbox.demo.memory import Word
from tests.softimex.rack import DIES_WITH_US, Node, Rack
from tests.softimex.workload import CHANNELS, give_channels

PROGRAM = [*DIES_WITH_US, sys.executable, "-m", "imex_dra.sandbox.demo.memory"]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def rack() -> Iterator[Rack]:
    rack = Rack(2)
    for node in rack.nodes:
        give_channels(node, 1, 2)
    rack.start()
    yield rack
    rack.close()


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(node: Node, channel: int, *words: str) -> "subprocess.Popen[str]":
        file = {"IMEX_CHANNEL_FILE": str(node.root / CHANNELS / f"channel{channel}")}
        process = subprocess.Popen([*PROGRAM, *words], env=node.env | file, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.terminate()
        process.communicate(timeout=20)


def word(process: "subprocess.Popen[str]") -> Word:
    assert process.stdout
    return msgspec.json.decode(process.stdout.readline(), type=Word)


def test_a_friend_reads_and_a_stranger_is_refused_with_the_same_handle(rack: Rack, start: Start) -> None:
    here, there = rack.nodes
    exporter = start(here, 1, "export")
    handle = word(exporter).handle
    friend, stranger = start(there, 1, "import", handle), start(here, 2, "import", handle)
    assert checks.was_let_in(word(friend)).ok
    refused = checks.was_refused(word(stranger))
    assert refused.ok
    assert refused.found.startswith("CUDA_ERROR_NOT_PERMITTED (800): ")
    assert (friend.wait(20), stranger.wait(20)) == (0, 1)
    exporter.terminate()
    assert exporter.wait(20) == 0


def test_a_container_without_a_channel_says_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "export"],
        env={"PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "IMEX_CLIENT_SOCKET is not set" in msgspec.json.decode(done.stdout, type=Word).why
