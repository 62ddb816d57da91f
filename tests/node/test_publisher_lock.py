"""Of two node programs only one publishes; the other takes over when the first ends, however it ends."""

import asyncio
import sys
from pathlib import Path

import pytest

from imex_dra.node import program
from imex_dra.node.program import publisher_lock
from tests.waiting import until_async

HOLD_LOCK = """
import asyncio, logging, sys
import structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
from pathlib import Path
from imex_dra.node.program import publisher_lock

async def main():
    async with publisher_lock(Path(sys.argv[1])):
        print("locked", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The results of all attempts of this process to get a lock."""
    made: list[bool] = []

    def attempt(descriptor: int) -> bool:
        made.append(locked(descriptor))
        return made[-1]

    locked = program._locked
    monkeypatch.setattr(program, "_locked", attempt)
    return made


class LockHolder:
    def __init__(self, lock: Path) -> None:
        self.has_lock = False
        self._task = asyncio.create_task(self._run(lock))

    async def _run(self, lock: Path) -> None:
        async with publisher_lock(lock):
            self.has_lock = True
            await asyncio.Event().wait()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


async def test_the_second_gets_the_lock_when_the_first_stops(tmp_path: Path, attempts: list[bool]) -> None:
    lock = tmp_path / "plugin" / "publisher.lock"
    first = LockHolder(lock)
    await until_async(lambda: first.has_lock)
    second = LockHolder(lock)
    await until_async(lambda: len(attempts) >= 3 or second.has_lock)
    assert attempts[:3] == [True, False, False]
    assert not second.has_lock
    await first.stop()
    await until_async(lambda: second.has_lock)
    await second.stop()


async def test_the_second_gets_the_lock_when_the_first_is_killed(tmp_path: Path, attempts: list[bool]) -> None:
    lock = tmp_path / "publisher.lock"
    first = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD_LOCK, str(lock), stdout=asyncio.subprocess.PIPE
    )
    assert first.stdout is not None
    assert await first.stdout.readline() == b"locked\n"
    second = LockHolder(lock)
    await until_async(lambda: len(attempts) >= 2 or second.has_lock)
    assert attempts[:2] == [False, False]
    assert not second.has_lock
    first.kill()
    await first.communicate()
    await until_async(lambda: second.has_lock)
    await second.stop()
