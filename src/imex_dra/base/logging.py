"""Structured logs on stderr: readable text at a terminal, JSON lines otherwise, unless a format is given.

The lowest level that is logged can change while the program runs. Loggers cache their configuration when they
are first used, so the level is not part of it: `LevelFilter` drops messages. What libraries log through the
standard library (asyncio, grpc) has the same format, from the level warning on.
"""

import logging
import sys
from collections.abc import Callable
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

Format = Literal["json", "text"]

_LEVELS = logging.getLevelNamesMapping()


class LevelFilter:
    """A processor that drops messages below its level."""

    def __init__(self, level: str) -> None:
        self._configured = self.level = level

    def toggle_debug(self) -> None:
        """Switch to the level debug, or back to the configured one."""
        self.level = "debug" if self.level != "debug" else self._configured

    def __call__(self, _: WrappedLogger, method: str, event: EventDict) -> EventDict:
        # A filtering logger reports `exception` and `warn` as error and warning.
        if _LEVELS[method.upper()] < _LEVELS[self.level.upper()]:
            raise structlog.DropEvent
        return event


def configure(level: str = "info", format: Format | None = None) -> Callable[[], None]:
    """Returns a function that switches to the level debug, and at its next call back."""
    filter = LevelFilter(level)
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    renderers = _renderers(format or ("text" if sys.stderr.isatty() else "json"))
    _configure_libraries(level, [structlog.stdlib.add_logger_name, *common], renderers)
    structlog.configure(
        processors=[filter, *common, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )

    def toggle_debug() -> None:
        filter.toggle_debug()
        structlog.get_logger().warning("the log level changed", lowest=filter.level)

    return toggle_debug


class _LibraryHandler(logging.StreamHandler[TextIO]):
    pass


def _configure_libraries(level: str, processors: list[Processor], renderers: list[Processor]) -> None:
    handler = _LibraryHandler(sys.stderr)
    handler.setLevel(max(logging.WARNING, _LEVELS[level.upper()]))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=processors,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    for former in [found for found in root.handlers if isinstance(found, _LibraryHandler)]:
        root.removeHandler(former)
    root.addHandler(handler)


def _renderers(format: Format) -> list[Processor]:
    if format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]
