"""The rank server, which replaces sshd in a worker pod: it starts ranks for launchers that have the job's key.

The MPI Operator gives workers the command `/usr/sbin/sshd -De`. The simulated kubelet runs this program instead,
as the first process of the container. It reaps orphaned processes of ranks, and forks one child per launcher.
"""

import os
import signal
import socket
import sys
import time
from types import FrameType

from imex_dra.base.errors import ImexError, Misconfigured
from imex_sandbox.mpi.connection import Connection, JobKey, authenticate_launcher, find_job_key
from imex_sandbox.mpi.ranks import Ranks

HANDSHAKE_SECONDS = 30.0
BIND_SECONDS = 10.0


def main() -> int:
    try:
        key, host = find_job_key(), socket.gethostname()
        with _listen(key.address(host)) as listening:
            _log(f"Server listening for launchers of this job on {host}.")
            _serve(listening, key)
    except ImexError as error:
        _log(str(error))
        return 1
    return 0


def _listen(address: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + BIND_SECONDS
    while True:
        try:
            listening.bind(address)
        except OSError as error:
            # After a restart of the container, the server of the previous container may still be running.
            if time.monotonic() > deadline:
                raise Misconfigured(
                    f"cannot listen: {error}. Another worker of this job has the same host name"
                ) from error
            time.sleep(0.1)
            continue
        listening.listen()
        return listening


def _serve(listening: socket.socket, key: JobKey) -> None:
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGINT, _exit)
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _serve_launcher(connection, key)
        connection.close()


def _serve_launcher(sock: socket.socket, key: JobKey) -> None:
    """Runs in a child process and does not return."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    try:
        connection = Connection(sock)
        connection.set_timeout(HANDSHAKE_SECONDS)
        authenticate_launcher(connection, key)
        connection.set_timeout(None)
        Ranks(connection).run()
    except (ImexError, OSError) as error:
        _log(str(error))
    finally:
        os._exit(0)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _reap(number: int, frame: FrameType | None) -> None:
    # All children that have ended, because signals are not queued. The first process of a container also inherits
    # orphans.
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _log(message: str) -> None:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
