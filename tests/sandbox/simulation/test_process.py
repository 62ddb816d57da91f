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


def test_a_program_that_hangs_continues_later_with_what_it_knew(loop: VirtualLoop) -> None:
    steps = []

    async def main() -> None:
        while True:
            await asyncio.sleep(1.0)
            steps.append(loop.time())

    async def run() -> None:
        program = Program("counter", Link(random.Random(1)))
        program.start(main())
        await asyncio.sleep(2.5)
        program.hang()
        await asyncio.sleep(10.0)
        program.resume()
        await asyncio.sleep(1.2)
        program.kill()
        await program.ended()

    loop.run_until_complete(run())
    assert steps == pytest.approx([1.0, 2.0, 12.5, 13.5])


def test_a_program_is_killed_between_any_two_of_its_steps(loop: VirtualLoop) -> None:
    reached = []

    async def main() -> None:
        for number in range(3):
            reached.append(number)
            await asyncio.sleep(1.0)

    async def run(number: int) -> bool:
        program = Program("steps", Link(random.Random(1)))
        program.kill_before_step(number)
        program.start(main())
        await program.ended()
        return program.killed

    for number in range(3):
        reached.clear()
        assert loop.run_until_complete(run(number))
        assert len(reached) < 3
    assert not loop.run_until_complete(run(100))
    assert reached[-3:] == [0, 1, 2]


def test_a_program_hangs_between_two_of_its_steps_and_goes_on_later(loop: VirtualLoop) -> None:
    reached = []

    async def main() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            reached.append(loop.time())

    async def run() -> None:
        program = Program("steps", Link(random.Random(1)))
        program.hang_before_step(2)
        program.start(main())
        await asyncio.sleep(500.0)
        program.resume()
        await program.ended()
        assert not program.killed

    loop.run_until_complete(run())
    assert reached == pytest.approx([0.0, 500.0, 500.0])
