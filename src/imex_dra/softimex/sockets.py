"""Sockets before anybody has said anything: how daemons listen, and how they are dialled."""

import os
import socket
import stat
from contextlib import suppress

from imex_dra.softimex.errors import StartError

BACKLOG = 256


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listen_tcp(address: str, port: int) -> socket.socket:
    sock = socket.socket(family(address))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return _listen(sock, (address, port), f"{address} port {port}")


def listen_unix(path: str) -> socket.socket:
    """World-writable: who may do what is decided message by message."""
    with suppress(OSError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    sock = _listen(socket.socket(socket.AF_UNIX), path, path)
    os.chmod(path, 0o666)
    return sock


def _listen(sock: socket.socket, endpoint: tuple[str, int] | str, name: str) -> socket.socket:
    try:
        sock.bind(endpoint)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise StartError(f"can't listen on {name}: {error.strerror or error}") from error
    return sock


def begin_connection(source: str, address: str, port: int) -> socket.socket:
    """A connection attempt from an address of this node, so that the other end sees which node it is.

    The ports of daemons lie in the range from which the kernel chooses ours; an address that may be reused does
    not keep a daemon from listening on its port.
    """
    sock = socket.socket(family(address))
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source:
            sock.bind((source, 0))
        sock.connect_ex((address, port))
    except OSError:
        sock.close()
        raise
    return sock
