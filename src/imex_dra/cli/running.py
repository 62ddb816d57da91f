"""Common to the long-running commands: options, logging, and termination on SIGTERM and SIGINT."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import structlog

from imex_dra.base.errors import ImexError, Misconfigured, OtherDriver
from imex_dra.base.logging import Format, configure
from imex_dra.base.telemetry import parse_address
from imex_dra.cli import exit_status

F = TypeVar("F", bound=Callable[..., Any])

kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Kubeconfig file. Default, as for kubectl: $KUBECONFIG, ~/.kube/config, or the pod's service account.",
)
log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level to log. SIGUSR2 switches to debug, and back, while the program runs.",
)
log_format_option = click.option(
    "--log-format",
    type=click.Choice(["json", "text"]),
    help="Format of the log, which goes to stderr. Default: text at a terminal, json otherwise.",
)


def metrics_option(port: int, *more: str) -> Callable[[F], F]:
    paths = ("/metrics", "/livez", "/readyz", *more)
    return click.option(
        "--metrics-address",
        default=f":{port}",
        show_default=True,
        callback=checked_address,
        help=f"HOST:PORT, or :PORT for all addresses, that serves {', '.join(paths)}; empty: none.",
    )


def checked_address(context: click.Context, option: click.Parameter, value: str) -> str:
    try:
        if value:
            parse_address(value)
    except Misconfigured as error:
        raise click.BadParameter(str(error)) from error
    return value


def run_until_stopped(
    program: Coroutine[Any, Any, None], log_level: str = "info", log_format: Format | None = None
) -> None:
    """Returns after SIGTERM or SIGINT. Raises the program's ImexError; several of a TaskGroup become one. With the
    format json the error is logged, and SystemExit raised.
    """
    toggle_debug = configure(log_level, log_format)
    try:
        _run(program, toggle_debug)
    except ImexError as error:
        if log_format == "json":
            structlog.get_logger().critical(str(error))
            sys.exit(exit_status(error))
        raise


def _run(program: Coroutine[Any, Any, None], toggle_debug: Callable[[], None]) -> None:
    with asyncio.Runner() as runner:
        try:
            runner.run(_stoppable(program, toggle_debug))
        except ExceptionGroup as group:
            if not all(isinstance(error, ImexError) for error in _leaves(group)):
                raise
            # A program that must not run here ends with its own exit status, whatever else failed.
            first, *others = sorted(_leaves(group), key=lambda error: not isinstance(error, OtherDriver))
            if isinstance(first, OtherDriver):
                raise first from None
            raise ImexError("; ".join(map(str, (first, *others)))) if others else first from None


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def _stoppable(program: Coroutine[Any, Any, None], toggle_debug: Callable[[], None]) -> None:
    task = asyncio.ensure_future(program)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR2, toggle_debug)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
