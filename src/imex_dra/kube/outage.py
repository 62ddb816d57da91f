"""Logs that a watch is down: once, and only if it stays down.

Reconnects are ordinary: the server ends watches, connections break, API servers restart, etcd is compacted. Each
of them is logged for debugging only.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from imex_dra.base.errors import ImexError

TOLERATED = 30.0
"""Seconds without a watch before the warning."""


class Outage:
    def __init__(self, is_healthy: Callable[[], bool], log: Any) -> None:
        """`is_healthy`: whether there is a watch, and not one that was opened only a moment ago."""
        self._is_healthy = is_healthy
        self._log = log
        self._error = ""
        self._alarm: asyncio.TimerHandle | None = None
        self._warned = False

    def interrupted(self, error: ImexError) -> None:
        self._error = str(error)
        self._log.debug("watch interrupted", error=self._error)
        if self._alarm is None and not self._warned:
            self._alarm = asyncio.get_running_loop().call_later(TOLERATED, self._warn)

    def ended(self) -> None:
        # The alarm stays set: a watch that breaks again as soon as it is opened is as bad as none.
        if self._warned:
            self._warned = False
            self._log.info("watching again")

    def close(self) -> None:
        if self._alarm:
            self._alarm.cancel()

    def _warn(self) -> None:
        self._alarm = None
        if not self._is_healthy():
            self._warned = True
            self._log.warning("no watch", seconds=TOLERATED, error=self._error)
