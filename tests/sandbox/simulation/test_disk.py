"""A full disk, a failing one, and one that loses power."""

import asyncio
import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.base.files import write_atomically
from imex_sandbox.simulation.disk import Disk
from imex_sandbox.simulation.loop import VirtualLoop
from imex_sandbox.simulation.network import Link
from imex_sandbox.simulation.process import Program, killable_files


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    created = VirtualLoop()
    with killable_files():
        yield created
    created.close()


def write(loop: VirtualLoop, disk: Disk, path: Path, content: bytes) -> OSError | None:
    """As a program on the node does it; returns why it failed."""
    failures: list[OSError] = []

    async def main() -> None:
        try:
            write_atomically(path, content)
        except OSError as error:
            failures.append(error)

    async def run() -> None:
        program = Program("writer", Link(random.Random(1)), disk)
        program.start(main())
        await program.ended()

    loop.run_until_complete(run())
    return failures[0] if failures else None


def test_a_full_disk_takes_no_new_file_and_keeps_the_old_content(loop: VirtualLoop, tmp_path: Path) -> None:
    disk, file = Disk(tmp_path, random.Random(1), loop.time), tmp_path / "file"
    assert write(loop, disk, file, b"old") is None
    disk.is_full = True
    failure = write(loop, disk, file, b"new")
    assert failure is not None
    assert failure.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == b"old"
    disk.is_full = False
    assert write(loop, disk, file, b"new") is None


def test_a_failing_disk_refuses_operations(loop: VirtualLoop, tmp_path: Path) -> None:
    disk = Disk(tmp_path, random.Random(1), loop.time)
    disk.errors = 1.0
    failure = write(loop, disk, tmp_path / "file", b"content")
    assert failure is not None
    assert failure.errno == errno.EIO


def test_a_loss_of_power_keeps_what_was_written_back_and_any_number_of_later_changes(
    loop: VirtualLoop, tmp_path: Path
) -> None:
    seen = set()
    for seed in range(40):
        file = tmp_path / f"file-{seed}"
        disk = Disk(tmp_path, random.Random(seed), loop.time)
        write(loop, disk, file, b"first")
        loop.run_until_complete(asyncio.sleep(31.0))
        write(loop, disk, file, b"second")
        write(loop, disk, file, b"third")
        disk.lose_power()
        seen.add(file.read_bytes())
    assert seen == {b"first", b"second", b"third", b""}, "an empty file: renamed, but its content was not written"
