"""What the long-running programs share: options, logs, and an orderly end on SIGTERM and Ctrl-C."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from imex_dra.base.errors import ImexError
from imex_dra.base.logging import configure

F = TypeVar("F", bound=Callable[..., Any])

kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="How to reach the API server; default: the pod's service account, then $KUBECONFIG.",
)
log_level_option = click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)


def run_until_stopped(program: Coroutine[Any, Any, None], log_level: str) -> None:
    """Ends with 0 when told to stop, with the error's own words when it could not go on."""
    configure(log_level)
    with asyncio.Runner() as runner:
        try:
            runner.run(_stoppable(program))
        except ExceptionGroup as group:
            if not all(isinstance(error, ImexError) for error in _leaves(group)):
                raise
            first, *others = _leaves(group)
            raise ImexError("; ".join(map(str, (first, *others)))) if others else first from None


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def _stoppable(program: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(program)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
