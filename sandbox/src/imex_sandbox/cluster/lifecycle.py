"""`imex up`: lock the name, start the cluster, serve requests, and remove everything but the logs.

In the foreground, or with `--detach` in a session of its own that is followed until the cluster is ready.
"""

import asyncio
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click
import msgspec

from imex_dra.base.errors import ImexError, Unavailable
from imex_dra.base.logging import configure
from imex_sandbox import control
from imex_sandbox.cluster.handle import is_ready
from imex_sandbox.cluster.host import Host, StartupLog
from imex_sandbox.cluster.lock import CleanupProcess, ClusterLock, already_running, is_locked, lock_owner
from imex_sandbox.cluster.paths import ClusterPaths
from imex_sandbox.cluster.requests import RequestHandler
from imex_sandbox.cluster.settings import Options
from imex_sandbox.cluster.supervisor import PERIOD
from imex_sandbox.control import Request
from imex_sandbox.process import raise_file_limit

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FOLLOW_PERIOD = 0.1


def run(options: Options) -> None:
    """Run the cluster until it is stopped. Raise if it fails to start, or if a required process ends."""
    paths, log = ClusterPaths(options.cluster.name), StartupLog()
    lock = ClusterLock(options.cluster.name)
    try:
        host = Host(options, paths, lock.number)
        paths.check_socket_length(max((node.name for node in host.nodes), key=len))
        paths.create()
    except BaseException:
        lock.release()
        raise
    cleanup = CleanupProcess(paths.temporary, lock)
    for number in _STOP_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        raise_file_limit()
        host.start(log)
        asyncio.run(_serve(host, log))
    except KeyboardInterrupt:
        log.print("stopped during startup")
    finally:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        with log.step("everything is stopped and removed"):
            host.stop()
            # The cleanup process shares the lock, so the name becomes free only after the files are gone.
            lock.release()
            cleanup.run()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


async def _serve(host: Host, log: StartupLog) -> None:
    stopped = asyncio.Event()
    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    handler = RequestHandler(host)

    async def handle(request: Request) -> Any:
        if request.action == "stop":
            return stopped.set()
        return await handler.handle(request)

    name = host.paths.name
    # A detached cluster prints this, too: Ctrl-C does not reach it.
    log.print(
        f"{len(host.nodes)} nodes after {log.elapsed:.1f} s. Stop them with imex down --name {name}; in the"
        " foreground, Ctrl-C stops them, too."
    )
    log.print("In another shell:")
    click.echo(f"export KUBECONFIG={host.paths.kubeconfig}")
    # The socket comes last: it tells others that the cluster is ready, and they then read the lines above.
    async with control.serving(host.paths.control_socket, handle):
        while not stopped.is_set():
            if message := host.supervisor.failure():
                raise Unavailable(message)
            for message in host.supervisor.restart_ended():
                log.print(message)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), PERIOD)


def start_detached(options: Options) -> None:
    """Start `run` in a new session, and show its output until the cluster is ready. A log keeps the output."""
    name = options.cluster.name
    if is_locked(name):
        raise already_running(name)
    directory = ClusterPaths(name).state.parent
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", __name__, msgspec.json.encode(options)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _follow(name, child, log)
    except BaseException:
        child.terminate()
        child.wait(timeout=60)
        raise


def _follow(name: str, child: subprocess.Popen[bytes], log: Path) -> None:
    with log.open() as output:
        while True:
            # Before the output is read, so that all lines of a child that has ended are shown.
            ended, ready = child.poll() is not None, is_ready(name) and lock_owner(name) == child.pid
            for line in output:
                click.echo(line, nl=False, err=not line.startswith("export "))
            if ended:
                raise Unavailable(f"cluster {name} did not start: its output is above and in {log}")
            if ready:
                child.returncode = 0  # It keeps running: Popen must not warn about it.
                return
            time.sleep(_FOLLOW_PERIOD)


def main() -> None:
    configure("warning")
    try:
        run(msgspec.json.decode(sys.argv[1], type=Options))
    except ImexError as error:
        click.echo(f"imex: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
