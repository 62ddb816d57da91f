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

import msgspec

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.kubelet import confinement
from imex_dra.sandbox.kubelet.containers import Bind, Exit, Order, StartFailed, Task

TERMINATION_LOG = "/dev/termination-log"
LONGEST_MESSAGE = 4096
_UNSHARE = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--uts", "--ipc"),
    *("--fork", "--kill-child=KILL", "--"),
    *(sys.executable, "-I", "-S", confinement.__file__),
)


class ProcessTask:
    """`descriptor` stands for the container's first process, whose parent is `unshare`; None if it has ended."""

    def __init__(self, unshare: Process, descriptor: int | None, message: Path) -> None:
        self._unshare = unshare
        self._descriptor = descriptor
        self._message = message

    async def wait(self) -> Exit:
        code = await self._unshare.wait()
        if self._descriptor is not None:
            await _end_of(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
        words = self._message.read_bytes()[:LONGEST_MESSAGE].decode(errors="replace")
        return Exit(code if code >= 0 else 128 - code, words)

    def terminate(self) -> None:
        if self._descriptor is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)

    def kill(self) -> None:
        """By way of the parent: of a child that was killed it says nothing but 1 (util-linux 2.38)."""
        if self._unshare.returncode is None:
            self._unshare.kill()


class Processes:
    needs_files = True

    async def launch(self, order: Order) -> Task:
        if not order.argv:
            raise Rejected(f"no command specified for container {order.container.name}")
        scratch = _scratch(order)
        message = scratch / "message"
        message.touch()
        log = order.directory / f"{order.container.name}.log"
        plan = scratch / "plan.json"
        plan.write_bytes(msgspec.json.encode(_plan(order, scratch, message)))
        reading, writing = os.pipe()
        try:
            process = await _spawn(plan, writing, log)
        finally:
            os.close(writing)
        said = await _read(reading)
        if said != confinement.STARTED:
            await process.wait()
            why = said.decode(errors="replace") or f"it can't be confined here; see {log}"
            raise StartFailed(f"unable to start container process: {why}")
        return ProcessTask(process, _first_process(process), message)


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
        "hostname": order.pod.spec.hostname or order.pod.metadata.name,
        "directory": order.container.working_dir or "/",
        "argv": order.argv,
        "environment": dict(order.environment),
    }


async def _spawn(plan: Path, descriptor: int, log: Path) -> Process:
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *_UNSHARE,
            str(plan),
            str(descriptor),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(descriptor,),
            process_group=0,
        )


async def _read(descriptor: int) -> bytes:
    """What the child says before it becomes the container, or ends. (`unshare` holds the pipe open for ever.)"""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        return await reader.read(LONGEST_MESSAGE)
    finally:
        transport.close()


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
