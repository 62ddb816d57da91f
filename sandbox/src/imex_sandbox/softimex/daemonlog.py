"""The daemon's log, in the line format of `nvidia-imex`.

Events that a remote peer can cause (refused connections, malformed frames) are logged at level VERBOSE, which
LOG_LEVEL cannot enable. They stay in a bounded buffer that SIGHUP dumps, so that no peer can fill the disk. A log
that cannot be written never stops the daemon.
"""

import os
import sys
import time
from collections import deque
from typing import TextIO

ERROR, WARNING, INFO, VERBOSE = range(2, 6)  # 1 is CRITICAL, which soft IMEX does not use
_NAMES = {ERROR: "ERROR", WARNING: "WARNING", INFO: "INFO", VERBOSE: "VERBOSE"}
_BUFFERED_LINES = 500


class DaemonLog:
    def __init__(self, level: int = INFO, file: TextIO | None = None) -> None:
        self._level = level
        self._file = file or sys.stderr
        self._recent: deque[str] = deque(maxlen=_BUFFERED_LINES)

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


def open_log(level: int, path: str, append: bool) -> DaemonLog:
    """Log to stderr if the path is empty or the file cannot be opened."""
    if not path:
        return DaemonLog(level)
    try:
        return DaemonLog(level, open(path, "a" if append else "w"))
    except OSError as error:
        fallback = DaemonLog(level)
        fallback.warning(f"cannot open the log file {path}: {error.strerror}; logging to stderr")
        return fallback
