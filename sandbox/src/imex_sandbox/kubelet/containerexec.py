"""Commands executed inside a running container, for `kubectl exec` and for probes.

Each command is started by `nsenter.py`, which joins the container's namespaces and then executes the command.
"""

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

from imex_sandbox.kubelet import containerinit
from imex_sandbox.kubelet.podstate import StartError

_NSENTER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("nsenter.py")))
_MAX_REPORT = 4096


class ExecCommand(Struct, frozen=True):
    argv: tuple[str, ...]
    stdin: bool = False
    tty: bool = False


class ExecSession:
    """The caller must read `stdout` and `stderr`; with a terminal all output is on `stdout`."""

    def __init__(
        self,
        process: Process,
        stdout: StreamReader,
        stderr: StreamReader | None = None,
        stdin: StreamWriter | None = None,
        terminal: int | None = None,
    ) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self._process = process
        self._stdin = stdin
        self._terminal = terminal

    async def write_stdin(self, data: bytes) -> None:
        """Input that the command does not read any more is discarded, as in any pipe."""
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

    def close(self) -> None:
        """Kills the command if it still runs."""
        if self._process.returncode is None:
            self._process.kill()
        if self._stdin is not None:
            self._stdin.close()


async def start_exec(command: ExecCommand, spec: Path, container: int) -> ExecSession:
    """`spec` is the file that the container was started from, `container` a pidfd of its first process.

    Raises StartError, with the message of the real runtime, if the command cannot be executed.
    """
    reading, writing = os.pipe()
    try:
        start = _start_with_terminal if command.tty else _start_with_pipes
        session = await start(command, spec, container, writing)
    finally:
        os.close(writing)
    report = await read_report(reading)
    if report != containerinit.STARTED:
        await session.wait()
        session.close()
        cause = report.decode(errors="replace") or "the container has exited"
        raise StartError(f"failed to exec in container: unable to start container process: {cause}")
    return session


async def read_report(descriptor: int) -> bytes:
    """What `containerinit` or `nsenter` reports before it executes the command: `STARTED`, or an error message.

    Empty if the process died before it could report. Closes the descriptor.
    """
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        return await reader.read(_MAX_REPORT)
    finally:
        transport.close()


async def _start_with_pipes(command: ExecCommand, spec: Path, container: int, report: int) -> ExecSession:
    process = await asyncio.create_subprocess_exec(
        *_argv(command, spec, container, report),
        stdin=PIPE if command.stdin else DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        pass_fds=(container, report),
    )
    assert process.stdout is not None
    return ExecSession(process, process.stdout, process.stderr, process.stdin)


async def _start_with_terminal(command: ExecCommand, spec: Path, container: int, report: int) -> ExecSession:
    """The terminal is allocated on the host, so it has no name in the container's own /dev/pts."""
    ours, theirs = os.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *_argv(command, spec, container, report),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            pass_fds=(container, report),
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    reader, writer = await terminal_streams(ours)
    return ExecSession(process, reader, None, writer, ours)


class _TerminalProtocol(asyncio.StreamReaderProtocol):
    """A terminal reports an I/O error when its last process exits, where a pipe reports end of file.

    A StreamReader with an error discards what was not read yet: the output of a short command would be lost.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(None)


async def terminal_streams(terminal: int) -> tuple[StreamReader, StreamWriter]:
    loop, reader = asyncio.get_running_loop(), StreamReader()
    await loop.connect_read_pipe(lambda: _TerminalProtocol(reader), os.fdopen(os.dup(terminal), "rb", buffering=0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop), os.fdopen(terminal, "wb", buffering=0)
    )
    return reader, StreamWriter(transport, protocol, None, loop)


def _argv(command: ExecCommand, spec: Path, container: int, report: int) -> tuple[str, ...]:
    streams = "terminal" if command.tty else "pipes"
    return (*_NSENTER, str(spec), str(container), str(report), streams, *command.argv)
