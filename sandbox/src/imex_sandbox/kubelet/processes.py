"""Containers as processes, isolated as far as an unprivileged user can isolate them.

`unshare` creates the namespaces and stays as the parent of the container's first process, which is pid 1 of the
container: as in any container, pid 1 receives only signals that it handles, and its exit ends all other processes.
Parent-death signals kill everything when the kubelet process dies, so no container is ever orphaned.
"""

import asyncio
import os
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from imex_dra.base.errors import Misconfigured, Rejected
from imex_sandbox.kubelet import containerinit
from imex_sandbox.kubelet.containerexec import ExecCommand, ExecSession, read_report, start_exec
from imex_sandbox.kubelet.logs import LogWriter
from imex_sandbox.kubelet.podstate import StartError
from imex_sandbox.kubelet.runtime import BindMount, ContainerConfig, ExitStatus, RunningContainer
from imex_sandbox.kubernetes.binaries import find

TERMINATION_LOG = "/dev/termination-log"
MAX_TERMINATION_MESSAGE = 4096
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--uts", "--ipc", "--fork")
_CONTAINER_INIT = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *(*UNSHARE, "--kill-child=KILL", "--"),
    *(sys.executable, "-I", "-S", containerinit.__file__),
)


def require_user_namespaces() -> None:
    """Checked before racks start: otherwise they come up, and their first pod fails."""
    find(UNSHARE[0])
    attempt = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    if attempt.returncode:
        raise Misconfigured(
            f"cannot create containers on this machine ({attempt.stderr.strip()}): allow unprivileged user"
            " namespaces (on Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0), or run as root"
        )


class RunFiles(NamedTuple):
    """Files of one run of a container."""

    spec: Path
    termination_message: Path
    log: Path


class ProcessContainer:
    """`pidfd` refers to the container's first process, a child of `unshare`; None if it has exited."""

    def __init__(
        self, unshare: Process, pidfd: int | None, files: RunFiles, writers: tuple[LogWriter, ...]
    ) -> None:
        self._unshare = unshare
        self._pidfd = pidfd
        self._files = files
        self._writers = writers

    async def wait(self) -> ExitStatus:
        code = await self._unshare.wait()
        if self._pidfd is not None:
            await _process_exit(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        # The log is complete after this: every process that could write to it died with pid 1.
        for writer in self._writers:
            await writer.closed.wait()
        message = self._files.termination_message.read_bytes()[:MAX_TERMINATION_MESSAGE]
        return ExitStatus(code if code >= 0 else 128 - code, message.decode(errors="replace"))

    async def exec(self, command: ExecCommand) -> ExecSession:
        if self._pidfd is None:
            raise StartError("failed to exec in container: the container has exited")
        return await start_exec(command, self._files.spec, self._pidfd)

    def terminate(self) -> None:
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        # Through the parent: if its child is killed, unshare (util-linux 2.38) exits with 1 instead of 137.
        if self._unshare.returncode is None:
            self._unshare.kill()


class ProcessLauncher:
    runs_processes = True

    async def launch(self, config: ContainerConfig, log: Path) -> RunningContainer:
        if not config.argv:
            raise Rejected(f"no command specified for container {config.container.name}")
        files = _create_files(config, log)
        reading, writing = os.pipe()
        try:
            process, writers = await _spawn(files, writing)
        finally:
            os.close(writing)
        report = await read_report(reading)
        if report != containerinit.STARTED:
            await process.wait()
            cause = report.decode(errors="replace") or f"cannot create its namespaces; see {log}"
            raise StartError(f"unable to start container process: {cause}")
        return ProcessContainer(process, _open_first_process(process), files, writers)


def _create_files(config: ContainerConfig, log: Path) -> RunFiles:
    scratch = _create_scratch(config)
    files = RunFiles(scratch / "spec.json", scratch / "termination-message", log)
    files.termination_message.touch()
    files.spec.write_bytes(msgspec.json.encode(_spec(config, scratch, files.termination_message)))
    log.parent.mkdir(parents=True, exist_ok=True)
    return files


def _create_scratch(config: ContainerConfig) -> Path:
    """Each run of a container has its own directory."""
    base = config.directory / "containers" / config.container.name
    base.mkdir(parents=True, exist_ok=True)
    scratch = base / str(sum(1 for _ in base.iterdir()))
    (scratch / "root").mkdir(parents=True)
    return scratch


def _spec(config: ContainerConfig, scratch: Path, termination_message: Path) -> dict[str, object]:
    """Input of `containerinit` and `nsenter`."""
    mounts = (*config.mounts, BindMount(termination_message, TERMINATION_LOG))
    return {
        "root": str(scratch / "root"),
        "mounts": [(str(mount.source), mount.target, not mount.read_only) for mount in mounts],
        "hostname": config.pod.hostname,
        "directory": config.container.working_dir or "/",
        "argv": config.argv,
        "environment": dict(config.environment),
    }


async def _spawn(files: RunFiles, report: int) -> tuple[Process, tuple[LogWriter, ...]]:
    writers = tuple(LogWriter(files.log, stream) for stream in ("stdout", "stderr"))
    stdout, stderr = [await _connect(writer) for writer in writers]
    try:
        process = await asyncio.create_subprocess_exec(
            *_CONTAINER_INIT,
            str(files.spec),
            str(report),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(report,),
            process_group=0,
        )
    finally:
        os.close(stdout)
        os.close(stderr)
    return process, writers


async def _connect(writer: LogWriter) -> int:
    """Returns a descriptor whose data goes to the log writer."""
    reading, writing = os.pipe()
    await asyncio.get_running_loop().connect_read_pipe(lambda: writer, os.fdopen(reading, "rb", buffering=0))
    return writing


def _open_first_process(unshare: Process) -> int | None:
    for pid in _children(unshare.pid):
        with suppress(ProcessLookupError):
            return os.pidfd_open(pid)
    return None


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


async def _process_exit(pidfd: int) -> None:
    """A pidfd becomes readable when its process exits."""
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    loop.add_reader(pidfd, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(pidfd)
