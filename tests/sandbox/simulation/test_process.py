"""A killed program: what it had written stays, what it would do next has no effect."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.base.files import write_atomically
from imex_sandbox.simulation.loop import VirtualLoop
from imex_sandbox.simulation.network import Link
from imex_sandbox.simulation.process import Program, killable_files


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    created = VirtualLoop()
    with killable_files():
        yield created
    created.close()


def test_a_program_is_killed_before_any_of_its_file_operations(loop: VirtualLoop, tmp_path: Path) -> None:
    seen = []
    for number in range(20):
        file = tmp_path / f"{number}"
        file.write_text("old")

        async def main(path: Path = file) -> None:
            await asyncio.to_thread(write_atomically, path, b"new")

        async def run(number: int = number, main: object = main) -> bool:
            program = Program("writer", Link(random.Random(1)))
            program.kill_before_file_operation(number)
            program.start(main())  # type: ignore[operator]
            await program.ended()
            return program.killed

        killed = loop.run_until_complete(run())
        seen.append((killed, file.read_text()))
        if not killed:
            break
    assert seen[0] == (True, "old")
    assert seen[-1] == (False, "new")
    assert {content for _, content in seen} == {"old", "new"}, "a file is complete, whenever the program dies"
    assert len(seen) > 3


def test_cleanup_code_of_a_killed_program_changes_no_file(loop: VirtualLoop, tmp_path: Path) -> None:
    file = tmp_path / "file"

    async def main() -> None:
        try:
            await asyncio.sleep(100.0)
        finally:
            write_atomically(file, b"written after death")

    async def run() -> None:
        program = Program("writer", Link(random.Random(1)))
        program.start(main())
        await asyncio.sleep(1.0)
        program.kill()
        await program.ended()
        assert program.link.crashed

    loop.run_until_complete(run())
    assert not file.exists()
