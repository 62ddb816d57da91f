"""Shows a picture at a terminal: live, on the alternate screen, or once, below what is already there.

The alternate screen leaves the scrollback untouched and follows changes of the window size. Without a terminal,
with TERM=dumb, or without rich (an optional dependency, so it is imported late), callers print plain lines
instead.
"""

import asyncio
import importlib.util
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from imex_dra.picture.drawing import draw
from imex_dra.picture.model import ClusterModel, RunProgress
from imex_dra.picture.text import Line, Lines

if TYPE_CHECKING:
    from rich.text import Text

_FRAMES_PER_SECOND = 8
_MAX_HEIGHT = 60
"""Lines of a picture that is printed once."""

_DOMAIN_COLORS = ("#76b900", "#ff9f1c", "#4ea8ff", "#e879f9", "#ffd60a", "#2dd4bf", "#ff6b6b", "#a78bfa")

_STYLES = {
    "": "",
    "title": "bold",
    "frame": "grey42",
    "spine": "grey58",
    "name": "bold",
    "label": "grey58",
    "dim": "grey50",
    "count": "bold",
    "busy": "bold #76b900",
    "fine": "#5f8f0a",
    "good": "#76b900",
    "warn": "#ffb000",
    "bad": "bold #ff4d4d",
}


def can_draw(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can show the characters of a picture."""
    terminal = stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
    return terminal and (stream.encoding or "").lower().startswith("utf") and _has_rich()


def _has_rich() -> bool:
    return importlib.util.find_spec("rich") is not None


@asynccontextmanager
async def live_display(
    model: Callable[[], ClusterModel], progress: Callable[[], RunProgress], stream: TextIO
) -> AsyncIterator[None]:
    """Redraws the picture several times a second while the block runs."""

    def lines(width: int, height: int, tick: int) -> Lines:
        return draw(model(), progress(), width=width, height=height, tick=tick)

    async with live_lines(lines, stream):
        yield


@asynccontextmanager
async def live_lines(lines: Callable[[int, int, int], Lines], stream: TextIO) -> AsyncIterator[None]:
    """The same with any lines of a width, a height and a tick."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream)
    with Live(
        console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    ) as live:

        async def redraw() -> None:
            tick = 0
            while True:
                size = console.size
                live.update(rich_text(lines(size.width, size.height, tick)), refresh=True)
                tick += 1
                await asyncio.sleep(1 / _FRAMES_PER_SECOND)

        task = asyncio.create_task(redraw())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def print_once(model: ClusterModel, progress: RunProgress, below: Lines, stream: TextIO) -> None:
    """Prints the picture, if there is a rack, and more lines below it."""
    from rich.console import Console

    console = Console(file=stream)
    if model.racks:
        lines = draw(model, progress, width=console.width, height=_MAX_HEIGHT)
        console.print(rich_text(lines), soft_wrap=True, end="\n\n")
    console.print(rich_text(below), soft_wrap=True)


def rich_text(lines: Iterable[Line]) -> "Text":
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop", end="")
    for number, spans in enumerate(lines):
        text.append("\n" if number else "")
        for content, style in spans:
            text.append(content, _rich_style(style))
    return text


def _rich_style(name: str) -> str:
    """The letter of a ComputeDomain is a color. A suffix changes it: `!` as background, `?` dim, `*` bold."""
    if name in _STYLES:
        return _STYLES[name]
    color = _DOMAIN_COLORS[(ord(name[0]) - ord("A")) % len(_DOMAIN_COLORS)]
    if name.endswith("!"):
        return f"bold black on {color}"
    return " ".join(filter(None, ("dim" if "?" in name else "", "bold" if "*" in name else "", color)))
