"""Of two node programs one speaks, and the other takes over when it is gone, however it went."""

import asyncio
import sys
from pathlib import Path

from imex_dra.node.voice import speaking
from tests.kube.waiting import until

HOLDER = """
import asyncio, logging, sys
import structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
from pathlib import Path
from imex_dra.node.voice import speaking

async def main():
    async with speaking(Path(sys.argv[1])):
        print("speaking", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


class Speaker:
    def __init__(self, lock: Path) -> None:
        self.speaks = False
        self.task = asyncio.create_task(self._run(lock))

    async def _run(self, lock: Path) -> None:
        async with speaking(lock):
            self.speaks = True
            await asyncio.Event().wait()

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


async def test_the_first_speaks_until_it_ends_and_then_the_next(tmp_path: Path) -> None:
    lock = tmp_path / "plugin" / "speaker.lock"
    first = Speaker(lock)
    await until(lambda: first.speaks)
    second = Speaker(lock)
    for _ in range(3):
        await asyncio.sleep(0.1)
    assert not second.speaks
    await first.end()
    await until(lambda: second.speaks)
    await second.end()


async def test_one_that_was_killed_does_not_speak_for_ever(tmp_path: Path) -> None:
    lock = tmp_path / "speaker.lock"
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(lock), stdout=asyncio.subprocess.PIPE
    )
    assert other.stdout is not None
    async for line in other.stdout:
        if line == b"speaking\n":
            break
    mine = Speaker(lock)
    await asyncio.sleep(0.3)
    assert not mine.speaks
    other.kill()
    await other.communicate()
    await until(lambda: mine.speaks)
    await mine.end()
