"""Sockets: IP addresses, listening, connecting, and the connections that a listener accepted.

A listener keeps a limited number of connections. At the limit, a new connection replaces the oldest one that is
not established, so that idle connections cannot lock out clients.
"""

import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from imex_sandbox.softimex.errors import StartError
from imex_sandbox.softimex.loop import READ, Loop

BACKLOG = 256
ACCEPT_RETRY_SECONDS = 0.2


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_address(text: str) -> bool:
    try:
        socket.inet_pton(family(text), text)
    except (OSError, ValueError):
        return False
    return True


def listen_tcp(address: str, port: int) -> socket.socket:
    sock = socket.socket(family(address))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return _listen(sock, (address, port), f"{address} port {port}")


def listen_unix(path: str) -> socket.socket:
    """Listen on a world-writable socket. The services authorize each request themselves."""
    # A daemon that was killed leaves its socket behind. Remove nothing but a socket.
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
        raise StartError(f"cannot listen on {name}: {error.strerror or error}") from error
    return sock


def start_connect(source: str, address: str, port: int) -> socket.socket:
    """Start a non-blocking connection from `source`, an address of this node that identifies it to the peer."""
    sock = socket.socket(family(address))
    try:
        sock.setblocking(False)
        # Server ports lie within the kernel's ephemeral port range. Without SO_REUSEADDR, a connection that
        # happens to get such a port would keep a daemon on this address from listening on it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source:
            sock.bind((source, 0))
        sock.connect_ex((address, port))
    except OSError:
        sock.close()
        raise
    return sock


class AcceptedConnection(Protocol):
    @property
    def established(self) -> bool: ...
    def close(self, reason: str) -> None: ...
    def start(self) -> None: ...
    def tick(self, now: float) -> None: ...


C = TypeVar("C", bound=AcceptedConnection)


class Listener(Generic[C]):
    """Accepts connections on any number of sockets; `make` wraps a socket and its source address."""

    def __init__(self, loop: Loop, make: Callable[[socket.socket, str], C], limit: int) -> None:
        self._loop = loop
        self._make = make
        self._limit = limit
        self._sockets: list[socket.socket] = []
        self._connections: dict[C, None] = {}

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._connections))

    def listen(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sockets.append(sock)
        self._resume(sock)

    def add(self, sock: socket.socket, source: str) -> None:
        """Start a connection, or close it if all connections are established and the limit is reached."""
        if len(self._connections) >= self._limit and not self._evict():
            sock.close()
            return
        connection = self._make(sock, source)
        self._connections[connection] = None
        connection.start()

    def remove(self, connection: C) -> None:
        self._connections.pop(connection, None)

    def tick(self) -> None:
        now = time.monotonic()
        for connection in self:
            connection.tick(now)

    def close(self) -> None:
        """Stop accepting connections and remove the sockets from the file system."""
        for sock in self._sockets:
            self._loop.unwatch(sock)
            if sock.family == socket.AF_UNIX and sock.fileno() >= 0:
                with suppress(FileNotFoundError):
                    os.unlink(sock.getsockname())
            sock.close()

    def _resume(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self._loop.watch(sock, READ, lambda _: self._accept(sock))

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, source = listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:
            # Out of descriptors: the connection stays pending, and the socket would be ready again at once.
            self._loop.unwatch(listening)
            self._loop.call_later(ACCEPT_RETRY_SECONDS, lambda: self._resume(listening))
            return
        self.add(sock, source[0] if isinstance(source, tuple) else "")

    def _evict(self) -> bool:
        pending = next((connection for connection in self._connections if not connection.established), None)
        if pending is not None:
            pending.close("the connection limit is reached, and this connection is not established")
        return pending is not None
