"""Where a picture is drawn: on the whole screen of a real terminal, and nowhere else."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"

PROGRAM = """
import asyncio, sys
from imex_dra.picture.scene import Rack, Scene, Story, Tray, Holding
from imex_dra.picture.screen import can_draw, drawn, shown

scene = Scene((Rack("r0", (Tray("r0-n0", seats=16, holdings=(Holding("A"),)),)),))

async def main():
    frames = 0
    def look():
        nonlocal frames
        frames += 1
        return scene
    async with drawn(look, lambda: Story("a title"), sys.stdout):
        while frames < 3:
            await asyncio.sleep(0.01)
    shown(scene, Story("the end"), (), sys.stdout)

if can_draw(sys.stdout):
    asyncio.run(main())
else:
    print("no terminal to draw on")
"""


def at_a_terminal(**environment: str) -> str:
    """All that the program writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    settings = {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=inherited | settings | environment, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := _read(ours):
            written += chunk
    finally:
        os.close(ours)
        process.wait(timeout=30)
    return written.decode()


def _read(terminal: int) -> bytes:
    """A terminal whose other side is closed is an error to Linux."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_a_terminal_s_screen_is_taken_and_given_back() -> None:
    written = at_a_terminal()
    assert written.index(ENTER) < written.index("a title") < written.index(LEAVE) < written.index("the end")
    assert "\x1b[38;5;" in written


def test_no_color_is_honoured() -> None:
    written = at_a_terminal(NO_COLOR="1")
    assert "a title" in written
    assert not re.findall(r"\x1b\[[0-9;]*[345]8;", written)


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": ""}, {"PYTHONIOENCODING": "ascii"}])
def test_a_terminal_that_can_not_show_it_gets_lines(environment: dict[str, str]) -> None:
    assert at_a_terminal(**environment).split() == ["no", "terminal", "to", "draw", "on"]


def test_a_file_gets_lines(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        subprocess.run([sys.executable, "-c", PROGRAM], stdout=file, check=True, timeout=30)
    assert (tmp_path / "out").read_text() == "no terminal to draw on\n"
