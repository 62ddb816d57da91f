"""What `imex up` is doing, said while it does it: a line for each step, with the time it took."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click


class Steps:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        began = time.monotonic()
        if self._terminal:
            click.echo(f"{'':>8}   {title} …", nl=False, err=True)
        try:
            yield
        except BaseException:
            self._finish(f"{'failed':>8}   {title}")
            raise
        self._finish(f"{time.monotonic() - began:6.1f} s   {title}")

    def say(self, words: str) -> None:
        click.echo(words, err=True)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def _finish(self, line: str) -> None:
        click.echo(f"\r\x1b[2K{line}" if self._terminal else line, err=True)
