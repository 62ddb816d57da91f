"""Commands inside a running container, for `kubectl exec` and probes: processes with their own streams."""

import asyncio
import fcntl
import os
import struct
import sys
import termios
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from imex_dra.sandbox.kubelet import confinement
from imex_dra.sandbox.kubelet.pipes import heard
from imex_dra.sandbox.kubelet.runs import StartFailed

_ENTERING = (sys.executable, "-I", "-S", str(Path(__file__).with_name("entering.py")))


class Command(Struct, frozen=True):
    argv: tuple[str, ...]
    stdin: bool = False
    terminal: bool = False


class Execution:
    """`out` and `err` must be read; with a terminal all is `out`."""

    def __init__(
        self,
        process: Process,
        out: StreamReader,
        err: StreamReader | None = None,
        stdin: StreamWriter | None = None,
        terminal: int | None = None,
    ) -> None:
        self.out = out
        self.err = err
        self._process = process
        self._stdin = stdin
        self._terminal = terminal

    async def feed(self, data: bytes) -> None:
        """What a command no longer reads is lost, as in any pipe."""
        if self._stdin is not None:
            with suppress(ConnectionError, OSError):
                self._stdin.write(data)
                await self._stdin.drain()

    def close_stdin(self) -> None:
        if self._stdin is not None and self._terminal is None:
            self._stdin.close()

    def resize(self, width: int, height: int) -> None:
        if self._terminal is not None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    async def wait(self) -> int:
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    def end(self) -> None:
        """Whether it runs or has ended: nothing of it is left afterwards."""
        if self._process.returncode is None:
            self._process.kill()
        if self._stdin is not None:
            self._stdin.close()


async def start(command: Command, plan: Path, container: int) -> Execution:
    """Raises StartFailed, in the runtime's words, if the command can't run."""
    reading, writing = os.pipe()
    try:
        execution = await (_with_terminal if command.terminal else _with_pipes)(command, plan, container, writing)
    finally:
        os.close(writing)
    said = await heard(reading)
    if said != confinement.STARTED:
        await execution.wait()
        execution.end()
        why = said.decode(errors="replace") or "the container is gone"
        raise StartFailed(f"failed to exec in container: unable to start container process: {why}")
    return execution


async def _with_pipes(command: Command, plan: Path, container: int, told: int) -> Execution:
    process = await asyncio.create_subprocess_exec(
        *_argv(command, plan, container, told),
        stdin=PIPE if command.stdin else DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        pass_fds=(container, told),
    )
    assert process.stdout is not None
    return Execution(process, process.stdout, process.stderr, process.stdin)


async def _with_terminal(command: Command, plan: Path, container: int, told: int) -> Execution:
    """The terminal is the machine's: the container's own /dev/pts does not know its name."""
    ours, theirs = os.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *_argv(command, plan, container, told),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            pass_fds=(container, told),
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    reader, writer = await _streams(ours)
    return Execution(process, reader, None, writer, ours)


async def _streams(terminal: int) -> tuple[StreamReader, StreamWriter]:
    loop, reader = asyncio.get_running_loop(), StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(terminal), "rb", buffering=0)
    )
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop), os.fdopen(terminal, "wb", buffering=0)
    )
    return reader, StreamWriter(transport, protocol, None, loop)


def _argv(command: Command, plan: Path, container: int, told: int) -> tuple[str, ...]:
    terminal = "terminal" if command.terminal else "pipes"
    return (*_ENTERING, str(plan), str(container), str(told), terminal, *command.argv)
