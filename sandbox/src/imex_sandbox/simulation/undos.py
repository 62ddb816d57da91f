"""The ends of faults: each fault ends after a while, or together with all others."""

import asyncio
import random
from collections.abc import Callable


class Undos:
    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        """`before` is called before each end."""
        self._before = before
        self._pending: dict[object, Callable[[], None]] = {}

    def later(self, seconds: float, chance: random.Random, undo: Callable[[], object]) -> None:
        """After a random time with this mean, or when all faults are healed."""
        token = object()

        def run() -> None:
            if self._pending.pop(token, None) is not None:
                self._before()
                undo()

        self._pending[token] = run
        asyncio.get_running_loop().call_later(seconds * (0.1 + 1.8 * chance.random()), run)

    def run_all(self) -> None:
        for run in list(self._pending.values()):
            run()
