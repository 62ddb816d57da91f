"""Cleans up after a cluster, however it ended.

A shell that waits for the end of a pipe whose other end only `imex up` holds: when that process is gone, by its
own will or by `kill -9`, sockets, keys and data are removed. It shares in the hold of name and number until it is
done, so nobody who comes next finds the floor swept away below. Logs stay.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

_SWEEP = """
trap '' INT TERM HUP
cat >/dev/null
for again in 1 2 3 4 5 6 7 8 9 10; do
  rm -rf -- "$@" 2>/dev/null && exit
  sleep 0.2
done
"""
"""Who is being killed may still write a file into a directory that is being removed."""


class Janitor:
    def __init__(self, remove: Sequence[Path], keep_open: Sequence[int]) -> None:
        self._child = subprocess.Popen(
            ["sh", "-c", _SWEEP, "janitor", *map(str, remove)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=keep_open,
            start_new_session=True,
        )

    def sweep(self) -> None:
        """Now, and return when it is done."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=60)
