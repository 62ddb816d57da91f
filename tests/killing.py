"""Processes that are killed in the middle of what they do."""

import os
import signal
from collections.abc import Callable, Iterable
from itertools import count
from types import ModuleType
from typing import Any


def kill_before_call(fatal: int, calls: Iterable[tuple[ModuleType, str]]) -> None:
    """From now on, this process is killed in place of its call with this number."""
    numbers = count()

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_or_die(*arguments: Any, **options: Any) -> Any:
            if next(numbers) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return call_or_die

    for module, name in calls:
        setattr(module, name, counted(getattr(module, name)))
