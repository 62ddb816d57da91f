"""From a launcher to the ranks of a host: through its pod's rank server, or, on our own host, a child of ours."""

import os
import socket
import time

from imex_dra.base.errors import Unavailable
from imex_dra.sandbox.mpi import keys
from imex_dra.sandbox.mpi.layout import Host
from imex_dra.sandbox.mpi.ranks import Ranks
from imex_dra.sandbox.mpi.wire import Wire

ATTEMPT_SECONDS = 1.0
HANDSHAKE_SECONDS = 60.0
_NAP = 0.1


def is_here(host: Host) -> bool:
    return host.label in ("localhost", socket.gethostname().partition(".")[0])


def remote(host: Host, key: keys.Key, attempts: int) -> Wire:
    """A pod that is not running yet is waited for as long as ssh would: a second per attempt."""
    wire = Wire(_connected(host, key.address(host.label), time.monotonic() + attempts * ATTEMPT_SECONDS))
    wire.patience(HANDSHAKE_SECONDS)
    try:
        keys.introduce(wire, key, host.name)
    except OSError as error:
        raise Unavailable(f"{host.name} went away while it was greeted: {error}") from error
    wire.patience(None)
    return wire


def _connected(host: Host, address: str, deadline: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    while True:
        try:
            sock.connect(address)
        except OSError as error:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{host.name} does not answer: {error.strerror}. Does the pod {host.label} run? "
                    "If it does, it must run sshd, which mpirun's counterpart stands for here"
                ) from error
            time.sleep(_NAP)
            continue
        return sock


def local() -> Wire:
    """A child that holds nothing of ours but its own end, so that it notices when we are gone."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return Wire(ours)
    try:
        os.setpgid(0, 0)
        os.closerange(3, theirs.fileno())
        os.closerange(theirs.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        Ranks(Wire(theirs)).run()
    finally:
        os._exit(0)
