"""Progress of long work: one line that is rewritten at a terminal, otherwise a new line from time to time."""

import sys
import time

import click

LINE_EVERY_SECONDS = 20


class Progress:
    def __init__(self, title: str) -> None:
        self._title = title
        self._terminal = sys.stderr.isatty()
        self._began = self._shown = time.monotonic()

    def show(self, state: str) -> None:
        line = f"{self._title}: {state}, {self._elapsed()}"
        if self._terminal:
            click.echo(f"\r\x1b[2K{line}", nl=False, err=True)
        elif time.monotonic() - self._shown >= LINE_EVERY_SECONDS:
            self._shown = time.monotonic()
            click.echo(line, err=True)

    def finish(self, result: str) -> None:
        erase = "\r\x1b[2K" if self._terminal else ""
        click.echo(f"{erase}{self._title}: {result}, {self._elapsed()}", err=True)

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"
