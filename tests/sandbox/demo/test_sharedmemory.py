"""What the demo's pods do with memory, as processes on two nodes with real soft IMEX daemons."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from imex_sandbox.demo import checks
from imex_sandbox.demo.sharedmemory import MemoryResult
from tests.sandbox.softimex.rack import DIES_WITH_US, Node, Rack
from tests.sandbox.softimex.workload import CHANNELS, create_channels

PROGRAM = [*DIES_WITH_US, sys.executable, "-m", "imex_sandbox.demo.sharedmemory"]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def rack() -> Iterator[Rack]:
    rack = Rack(2)
    for node in rack.nodes:
        create_channels(node, 1, 2)
    rack.start()
    yield rack
    rack.close()


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(node: Node, channel: int, *arguments: str) -> "subprocess.Popen[str]":
        file = {"IMEX_CHANNEL_FILE": str(node.root / CHANNELS / f"channel{channel}")}
        process = subprocess.Popen([*PROGRAM, *arguments], env=node.env | file, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.terminate()
        process.communicate(timeout=60)


def result(process: "subprocess.Popen[str]") -> MemoryResult:
    assert process.stdout
    return msgspec.json.decode(process.stdout.readline(), type=MemoryResult)


def test_memory_can_be_imported_on_the_same_channel_only(rack: Rack, start: Start) -> None:
    here, there = rack.nodes
    exporter = start(here, 1, "export")
    handle = result(exporter).handle
    same_channel, other_channel = start(there, 1, "import", handle), start(here, 2, "import", handle)
    assert checks.memory_was_read(result(same_channel)).ok
    refused = checks.memory_was_refused(result(other_channel))
    assert refused.ok
    assert refused.found.startswith("CUDA_ERROR_NOT_PERMITTED (800): ")
    assert (same_channel.wait(60), other_channel.wait(60)) == (0, 1)
    exporter.terminate()
    assert exporter.wait(60) == 0


def test_a_container_without_a_channel_reports_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "export"],
        env={"PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    result = msgspec.json.decode(done.stdout, type=MemoryResult)
    assert (result.code, result.name) == (800, "CUDA_ERROR_NOT_PERMITTED")
    assert "IMEX_CLIENT_SOCKET is not set" in result.why
