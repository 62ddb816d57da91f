"""The two sockets of a plugin in the kubelet's directory, and those that killed plugins have left there.

Each instance has names of its own, so that two can serve during a rolling update. One that is killed cannot remove
its sockets. A kubelet that restarts would try to register each of them, again and again; so the next instance
removes those on which no process listens.
"""

import socket
import time
from pathlib import Path
from typing import NamedTuple

import structlog

from imex_dra.api.names import DRIVER
from imex_dra.base.errors import Misconfigured

log = structlog.get_logger()

_MAX_PATH = 107
"""Bytes: sun_path without the terminating NUL."""
_ABANDONED_AFTER = 10.0
"""Seconds. An instance that has just started has created its socket, but may not listen on it yet."""


class Sockets(NamedTuple):
    registration: Path
    service: Path


def sockets(kubelet: Path, instance: str) -> Sockets:
    """`kubelet`: the kubelet's root directory. `instance`: a short ID, unique on the node."""
    paths = Sockets(
        kubelet / "plugins_registry" / f"{DRIVER}-{instance}-reg.sock",
        kubelet / "plugins" / DRIVER / f"dra-{instance}.sock",
    )
    for path in paths:
        if len(bytes(path)) > _MAX_PATH:
            raise Misconfigured(f"socket path {path} exceeds {_MAX_PATH} bytes: choose a shorter --kubelet-dir")
    return paths


def remove_abandoned(own: Sockets, *, older_than: float = _ABANDONED_AFTER) -> None:
    """Call it when `own` are registered, so that the kubelet knows a plugin of this name all the time."""
    registrations = own.registration.parent.glob(f"{DRIVER}-*-reg.sock")
    services = own.service.parent.glob("dra-*.sock")
    for path in (*registrations, *services):
        try:
            is_old = time.time() - path.stat().st_mtime > older_than
            if path not in own and is_old and not _is_listening(path):
                path.unlink()
                log.info("removed the socket of a plugin that was killed", path=str(path))
        except OSError as error:  # the other instance has just removed it, or the disk is read-only
            log.debug("a socket cannot be examined", path=str(path), error=str(error))


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)  # a busy one has no room for another connection, and is listening
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            return True
    return True
