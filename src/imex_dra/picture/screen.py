"""Where a picture is shown: in place at a terminal, or as a line for each thing that happens.

At a terminal it takes the whole screen, as editors do, and gives it back: nothing scrolls, nothing flickers, and a
window that changes its size is no accident. Without one, with TERM=dumb, or without rich, there are plain lines.
"""

import asyncio
import importlib.util
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TextIO

from imex_dra.picture.ink import Lines
from imex_dra.picture.picture import picture
from imex_dra.picture.scene import Scene, Story

FRAMES_A_SECOND = 8
_ENOUGH = 60


def can_draw(stream: TextIO) -> bool:
    """Whether it is a terminal that can be drawn on, in characters that it knows."""
    terminal = stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
    return terminal and (stream.encoding or "").lower().startswith("utf") and _has_rich()


def _has_rich() -> bool:
    return importlib.util.find_spec("rich") is not None


@asynccontextmanager
async def drawn(scene: Callable[[], Scene], story: Callable[[], Story], stream: TextIO) -> AsyncIterator[None]:
    """While the block runs, the picture is drawn anew several times a second."""
    from rich.console import Console
    from rich.live import Live

    from imex_dra.picture.paint import painted

    console = Console(file=stream)
    with Live(
        console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    ) as live:

        async def draw() -> None:
            tick = 0
            while True:
                size = console.size
                lines = picture(scene(), story(), width=size.width, height=size.height, tick=tick)
                live.update(painted(lines), refresh=True)
                tick += 1
                await asyncio.sleep(1 / FRAMES_A_SECOND)

        task = asyncio.create_task(draw())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def shown(scene: Scene, story: Story, below: Lines, stream: TextIO) -> None:
    """Once, as it stays, with more lines below."""
    from rich.console import Console

    from imex_dra.picture.paint import painted

    console = Console(file=stream)
    if scene.racks:
        lines = picture(scene, story, width=console.width, height=_ENOUGH)
        console.print(painted(lines), soft_wrap=True, end="\n\n")
    console.print(painted(below), soft_wrap=True)
