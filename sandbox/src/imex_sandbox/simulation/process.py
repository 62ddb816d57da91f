"""A program that can be killed or hang at any moment: between two steps, or before any file operation.

A killed program leaves on disk what it has written, and learns nothing any more. Python cannot drop coroutines
without running their cleanup code, so the code runs, but its file operations and requests have no effect. A
program that hangs continues later with what it knew before, as after SIGSTOP and SIGCONT.
"""

import asyncio
import fcntl
import io
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any

from imex_sandbox.simulation.disk import Disk
from imex_sandbox.simulation.loop import VirtualLoop, owner
from imex_sandbox.simulation.network import Link

_FILE_OPERATIONS: list[tuple[Any, str]] = [
    *(
        (os, name)
        for name in ("open", "fchmod", "rename", "unlink", "mkdir", "fdopen", "ftruncate", "pwrite", "write")
    ),
    (fcntl, "flock"),
    (io, "open"),
]
"""Not `os.close`: it changes nothing on disk, and a killed program must not leak descriptors of ours."""


class Killed(BaseException):
    """Raised inside a killed program, at its next file operation."""


class Program:
    def __init__(self, name: str, link: Link, disk: Disk | None = None) -> None:
        self.name = name
        self.link = link
        self.disk = disk
        self.killed = False
        self.hangs = False
        self.death = asyncio.Event()
        self.started_at = asyncio.get_running_loop().time()
        self._task: asyncio.Task[None] | None = None
        self._context = copy_context()
        self._context.run(owner.set, self)
        self._operations_left: int | None = None
        self._steps_left: int | None = None
        self._at_step: Callable[[], None] = self.kill
        self._held: list[asyncio.Handle] = []

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done() and not self.killed

    def start(self, main: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(main), name=self.name, context=self._context)
        # A task that is cancelled before its first step leaves the coroutine unused.
        self._task.add_done_callback(lambda _: main.close())

    async def _run(self, main: Coroutine[Any, Any, None]) -> None:
        try:
            await main
        except* Killed:
            self.kill()
        finally:
            self.death.set()

    def kill(self) -> None:
        self.killed = True
        self.link.crashed = True
        self.death.set()
        self.resume()
        if self._task is not None:
            self._task.cancel()

    def hang(self) -> None:
        self.hangs = True

    def resume(self) -> None:
        self.hangs = False
        held, self._held = self._held, []
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.resume(held)

    def admits(self, step: asyncio.Handle) -> bool:
        if self._steps_left is not None and not self.hangs:
            self._steps_left -= 1
            if self._steps_left < 0:
                self._steps_left = None
                self._at_step()
        if self.hangs:
            self._held.append(step)
        return not self.hangs

    def kill_before_step(self, number: int) -> None:
        """The program is killed right before its step (from one await to the next) with this number."""
        self._steps_left, self._at_step = number, self.kill

    def hang_before_step(self, number: int) -> None:
        self._steps_left, self._at_step = number, self.hang

    def kill_before_file_operation(self, number: int) -> None:
        """The program is killed right before the file operation with this number, counted from now."""
        self._operations_left = number

    def disarm(self) -> None:
        self._operations_left = self._steps_left = None

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
            try:
                return await work
            except BaseExceptionGroup as group:
                if group.subgroup(Killed):
                    raise Killed from None
                raise

        context: Context = self._context.copy()
        task = asyncio.get_running_loop().create_task(inside(), context=context)
        task.add_done_callback(lambda _: work.close())
        return task

    def before_file_operation(self, operation: str, args: tuple[Any, ...]) -> None:
        if self._operations_left is not None:
            self._operations_left -= 1
            if self._operations_left < 0:
                self.kill()
        if self.killed:
            raise Killed
        if self.disk is not None:
            self.disk.before(operation, args)


@contextmanager
def killable_files() -> Iterator[None]:
    """While it is active, file operations ask the program in whose context they run."""
    originals = [(module, name, getattr(module, name)) for module, name in _FILE_OPERATIONS]
    for module, name, original in originals:
        setattr(module, name, _guarded("read" if module is io else name, original))
    try:
        yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


def _guarded(operation: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **options: Any) -> Any:
        program = owner.get()
        if not isinstance(program, Program):
            return original(*args, **options)
        program.before_file_operation(operation, args)
        result = original(*args, **options)
        if program.disk is None:
            return result
        program.disk.after(operation)
        return program.disk.opened_for_writing(result) if operation == "fdopen" else result

    return guarded
