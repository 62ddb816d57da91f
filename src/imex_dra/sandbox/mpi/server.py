"""What stands for sshd in a worker pod: starts ranks in this container for launchers that hold the job's key.

The MPI Operator gives workers the command `/usr/sbin/sshd -De`. This program takes its place, as the container's
first process: it reaps whatever ranks leave behind, and it is the parent of one process per launcher.
"""

import os
import signal
import socket
import sys
import time
from types import FrameType

from imex_dra.base.errors import ImexError, Misconfigured
from imex_dra.sandbox.mpi import keys
from imex_dra.sandbox.mpi.keys import Key
from imex_dra.sandbox.mpi.ranks import Ranks
from imex_dra.sandbox.mpi.wire import Wire

HANDSHAKE_SECONDS = 30.0
BIND_SECONDS = 10.0


def main() -> int:
    try:
        key, host = keys.find(), socket.gethostname()
        with _listening(key.address(host)) as listening:
            _say(f"Server listening for launchers of this job on {host}.")
            _serve(listening, key)
    except ImexError as error:
        _say(str(error))
        return 1
    return 0


def _listening(address: str) -> socket.socket:
    """The pod's container before us may not be quite gone."""
    listening = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + BIND_SECONDS
    while True:
        try:
            listening.bind(address)
        except OSError as error:
            if time.monotonic() > deadline:
                raise Misconfigured(f"another worker of this job has our host name: {error}") from error
            time.sleep(0.1)
            continue
        listening.listen()
        return listening


def _serve(listening: socket.socket, key: Key) -> None:
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _attend(connection, key)
        connection.close()


def _attend(connection: socket.socket, key: Key) -> None:
    """In a process of its own, which never returns."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    try:
        wire = Wire(connection)
        wire.patience(HANDSHAKE_SECONDS)
        keys.admit(wire, key)
        wire.patience(None)
        Ranks(wire).run()
    except (ImexError, OSError) as error:
        _say(str(error))
    finally:
        os._exit(0)


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _reap(number: int, frame: FrameType | None) -> None:
    """Everybody who has ended by now: a container's first process inherits all orphans."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
