"""The live display: on the alternate screen of a real terminal, and nowhere else."""

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
from imex_dra.picture.display import can_draw, live_display, print_once
from imex_dra.picture.model import ClusterModel, DomainClaims, Rack, RackNode, RunProgress

cluster = ClusterModel((Rack("r0", (RackNode("r0-n0", devices=16, domains=(DomainClaims("A"),)),)),))

async def main():
    frames = 0
    def model():
        nonlocal frames
        frames += 1
        return cluster
    async with live_display(model, lambda: RunProgress("a title"), sys.stdout):
        while frames < 3:
            await asyncio.sleep(0.01)
    print_once(cluster, RunProgress("the end"), (), sys.stdout)

if can_draw(sys.stdout):
    asyncio.run(main())
else:
    print("no terminal to draw on")
"""


def terminal_output(**environment: str) -> str:
    """Everything that the program writes to a terminal of 80 columns."""
    terminal, program_end = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    settings = {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=inherited | settings | environment,
        stdout=program_end,
        stderr=program_end,
    )
    os.close(program_end)
    written = b""
    try:
        while chunk := _read(terminal):
            written += chunk
    finally:
        os.close(terminal)
        process.wait(timeout=60)
    return written.decode()


def _read(terminal: int) -> bytes:
    """Linux reports an error when the other end of the terminal is closed."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_the_alternate_screen_is_entered_and_left() -> None:
    written = terminal_output()
    assert written.index(ENTER) < written.index("a title") < written.index(LEAVE) < written.index("the end")
    assert "\x1b[38;5;" in written


def test_no_color_is_honored() -> None:
    written = terminal_output(NO_COLOR="1")
    assert "a title" in written
    assert not re.findall(r"\x1b\[[0-9;]*[345]8;", written)


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": ""}, {"PYTHONIOENCODING": "ascii"}])
def test_a_terminal_without_the_capability_is_not_drawn_on(environment: dict[str, str]) -> None:
    assert terminal_output(**environment).split() == ["no", "terminal", "to", "draw", "on"]


def test_a_file_is_not_drawn_on(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        subprocess.run([sys.executable, "-c", PROGRAM], stdout=file, check=True, timeout=60)
    assert (tmp_path / "out").read_text() == "no terminal to draw on\n"
