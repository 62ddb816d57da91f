"""What the long-running programs share: options, logs, and an orderly end on SIGTERM and Ctrl-C."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
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
        except* ImexError as group:
            raise group.exceptions[0] from None


async def _stoppable(program: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(program)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
