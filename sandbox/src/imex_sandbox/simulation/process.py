"""A program that can be killed at any moment: between two steps, or before any file operation.

A killed program leaves on disk what it has written, and learns nothing any more. Python cannot drop coroutines
without running their cleanup code, so the code runs, but its file operations and requests have no effect.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from imex_sandbox.simulation.network import Link

_FILE_OPERATIONS: list[tuple[Any, str]] = [
    *(
        (os, name)
        for name in (
            "open",
            "close",
            "fchmod",
            "rename",
            "unlink",
            "mkdir",
            "fdopen",
            "ftruncate",
            "pwrite",
            "write",
        )
    ),
    (fcntl, "flock"),
]

_current: ContextVar["Program | None"] = ContextVar("program", default=None)


class Killed(BaseException):
    """Raised inside a killed program, at its next file operation."""


class Program:
    def __init__(self, name: str, link: Link) -> None:
        self.name = name
        self.link = link
        self.killed = False
        self._task: asyncio.Task[None] | None = None
        self._operations_left: int | None = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done() and not self.killed

    def start(self, main: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(self._run(main), name=self.name)

    async def _run(self, main: Coroutine[Any, Any, None]) -> None:
        _current.set(self)
        try:
            await main
        except* Killed:
            self.kill()

    def kill(self) -> None:
        self.killed = True
        self.link.crashed = True
        if self._task is not None:
            self._task.cancel()

    def kill_before_file_operation(self, number: int) -> None:
        """The program is killed right before the file operation with this number, counted from now."""
        self._operations_left = number

    def disarm(self) -> None:
        self._operations_left = None

    async def ended(self) -> None:
        """Raises what ended the program, unless it was killed."""
        if self._task is None:
            return
        await asyncio.wait({self._task})
        if not self.killed and not self._task.cancelled() and (error := self._task.exception()):
            raise error

    def call(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Work inside the program that somebody else asked for, such as a gRPC call."""

        async def inside() -> Any:
            _current.set(self)
            try:
                return await work
            except BaseExceptionGroup as group:
                if group.subgroup(Killed):
                    raise Killed from None
                raise

        return asyncio.create_task(inside())

    def before_file_operation(self) -> None:
        if self._operations_left is not None:
            self._operations_left -= 1
            if self._operations_left < 0:
                self.kill()
        if self.killed:
            raise Killed


@contextmanager
def killable_files() -> Iterator[None]:
    """While it is active, file operations ask the program in whose context they run."""
    originals = [(module, name, getattr(module, name)) for module, name in _FILE_OPERATIONS]
    for module, name, original in originals:
        setattr(module, name, _guarded(original))
    try:
        yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


def _guarded(original: Callable[..., Any]) -> Callable[..., Any]:
    def operation(*args: Any, **options: Any) -> Any:
        program = _current.get()
        if program is not None and original is not os_close:
            program.before_file_operation()
        return original(*args, **options)

    return operation


os_close = os.close
"""Closing a descriptor changes nothing on disk, and a killed program must not leak descriptors of ours."""
