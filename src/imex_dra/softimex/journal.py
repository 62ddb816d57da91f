"""The daemon's log.

Lines look like those of `nvidia-imex`. What strangers provoke (refused connections, broken frames) goes to a
buffer in memory only, which SIGHUP dumps, so that nobody can fill the disk from outside. A log that can't be
written never stops the daemon.
"""

import os
import sys
import time
from collections import deque
from typing import TextIO

CRITICAL, ERROR, WARNING, INFO, VERBOSE = range(1, 6)
_NAMES = {CRITICAL: "CRITICAL", ERROR: "ERROR", WARNING: "WARNING", INFO: "INFO", VERBOSE: "VERBOSE"}
_REMEMBERED = 500


class Journal:
    def __init__(self, level: int = INFO, file: TextIO | None = None) -> None:
        self._level = level
        self._file = file or sys.stderr
        self._recent: deque[str] = deque(maxlen=_REMEMBERED)

    def error(self, message: str) -> None:
        self._log(ERROR, message)

    def warning(self, message: str) -> None:
        self._log(WARNING, message)

    def info(self, message: str) -> None:
        self._log(INFO, message)

    def verbose(self, message: str) -> None:
        self._log(VERBOSE, message)

    def dump(self) -> None:
        for line in list(self._recent):
            self._write(f"[DUMP] {line}")

    def _log(self, level: int, message: str) -> None:
        stamp = time.strftime("%b %d %Y %H:%M:%S")
        line = f"[{stamp}] [{_NAMES[level]}] [tid {os.getpid()}] {message}"
        self._recent.append(line[:300])
        if level <= self._level:
            self._write(line)

    def _write(self, line: str) -> None:
        try:
            print(line.encode(errors="backslashreplace").decode(), file=self._file, flush=True)
        except (OSError, ValueError):
            return


def open_journal(level: int, name: str, append: bool) -> Journal:
    """A file that is empty by name, or can't be opened, means stderr."""
    if not name:
        return Journal(level)
    try:
        return Journal(level, open(name, "a" if append else "w"))
    except OSError as error:
        journal = Journal(level)
        journal.warning(f"can't open the log file {name}: {error.strerror}; logging to stderr")
        return journal
