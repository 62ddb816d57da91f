"""Containers that are processes, confined as far as a user without rights can confine them.

`unshare` gives namespaces and stays as the parent of the container's first process, which is its pid 1: as in
any container it hears only signals that it handles, and all others end with it. Everything dies with us
(parent-death signals), so nothing is orphaned whatever happens.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.kubelet import commands, confinement, namespaces
from imex_dra.sandbox.kubelet.commands import Command, Execution
from imex_dra.sandbox.kubelet.containers import Bind, Exit, Order, Task
from imex_dra.sandbox.kubelet.logs import Recorder
from imex_dra.sandbox.kubelet.pipes import heard
from imex_dra.sandbox.kubelet.runs import StartFailed

TERMINATION_LOG = "/dev/termination-log"
LONGEST_MESSAGE = 4096
_UNSHARE = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *(*namespaces.UNSHARE, "--kill-child=KILL", "--"),
    *(sys.executable, "-I", "-S", confinement.__file__),
)


class Files(NamedTuple):
    """Of one run of a container."""

    plan: Path
    message: Path
    log: Path


class ProcessTask:
    """`descriptor` stands for the container's first process, whose parent is `unshare`; None if it has ended."""

    def __init__(
        self, unshare: Process, descriptor: int | None, files: Files, recorders: tuple[Recorder, ...]
    ) -> None:
        self._unshare = unshare
        self._descriptor = descriptor
        self._files = files
        self._recorders = recorders

    async def wait(self) -> Exit:
        """All that it wrote is in its log by then: whoever could write more has died with it."""
        code = await self._unshare.wait()
        if self._descriptor is not None:
            await _end_of(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
        for recorder in self._recorders:
            await recorder.ended.wait()
        words = self._files.message.read_bytes()[:LONGEST_MESSAGE].decode(errors="replace")
        return Exit(code if code >= 0 else 128 - code, words)

    async def enter(self, command: Command) -> Execution:
        if self._descriptor is None:
            raise StartFailed("failed to exec in container: the container has ended")
        return await commands.start(command, self._files.plan, self._descriptor)

    def terminate(self) -> None:
        if self._descriptor is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)

    def kill(self) -> None:
        """By way of the parent: of a child that was killed it says nothing but 1 (util-linux 2.38)."""
        if self._unshare.returncode is None:
            self._unshare.kill()


class Processes:
    has_inside = True

    async def launch(self, order: Order, log: Path) -> Task:
        if not order.argv:
            raise Rejected(f"no command specified for container {order.container.name}")
        files = _files(order, log)
        reading, writing = os.pipe()
        try:
            process, recorders = await _spawn(files, writing)
        finally:
            os.close(writing)
        said = await heard(reading)
        if said != confinement.STARTED:
            await process.wait()
            why = said.decode(errors="replace") or f"it can't be confined here; see {log}"
            raise StartFailed(f"unable to start container process: {why}")
        return ProcessTask(process, _first_process(process), files, recorders)


def _files(order: Order, log: Path) -> Files:
    scratch = _scratch(order)
    files = Files(scratch / "plan.json", scratch / "message", log)
    files.message.touch()
    files.plan.write_bytes(msgspec.json.encode(_plan(order, scratch, files.message)))
    log.parent.mkdir(parents=True, exist_ok=True)
    return files


def _scratch(order: Order) -> Path:
    """A directory for one run; a later run of the container has another."""
    base = order.directory / "containers" / order.container.name
    base.mkdir(parents=True, exist_ok=True)
    scratch = base / str(sum(1 for _ in base.iterdir()))
    (scratch / "root").mkdir(parents=True)
    return scratch


def _plan(order: Order, scratch: Path, message: Path) -> dict[str, object]:
    binds = (*order.binds, Bind(message, TERMINATION_LOG))
    return {
        "root": str(scratch / "root"),
        "binds": [(str(b.source), b.target, not b.read_only) for b in binds],
        "hostname": order.pod.hostname,
        "directory": order.container.working_dir or "/",
        "argv": order.argv,
        "environment": dict(order.environment),
    }


async def _spawn(files: Files, descriptor: int) -> tuple[Process, tuple[Recorder, ...]]:
    recorders = tuple(Recorder(files.log, stream) for stream in ("stdout", "stderr"))
    out, err = [await _writing_end(recorder) for recorder in recorders]
    try:
        process = await asyncio.create_subprocess_exec(
            *_UNSHARE,
            str(files.plan),
            str(descriptor),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=(descriptor,),
            process_group=0,
        )
    finally:
        os.close(out)
        os.close(err)
    return process, recorders


async def _writing_end(recorder: Recorder) -> int:
    """What is written there, the recorder takes down."""
    reading, writing = os.pipe()
    await asyncio.get_running_loop().connect_read_pipe(lambda: recorder, os.fdopen(reading, "rb", buffering=0))
    return writing


def _first_process(unshare: Process) -> int | None:
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
    for pid in _numbers(children):
        with suppress(ProcessLookupError):
            return os.pidfd_open(pid)
    return None


def _numbers(path: Path) -> list[int]:
    try:
        return [int(word) for word in path.read_text().split()]
    except OSError:
        return []


async def _end_of(descriptor: int) -> None:
    """A process descriptor can be read when the process has ended."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
