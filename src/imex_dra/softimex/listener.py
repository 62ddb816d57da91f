"""Listening sockets, and the connections that came in through them.

At most `most` connections are kept. When they are all taken, the one that has not introduced itself for the
longest makes room, so that idlers can't shut out those who have something to say.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from imex_dra.softimex.loop import READ, Loop

PAUSE = 0.2


class Guest(Protocol):
    @property
    def introduced(self) -> bool: ...
    def close(self, why: str) -> None: ...
    def start(self) -> None: ...
    def tick(self, now: float) -> None: ...


G = TypeVar("G", bound=Guest)


class Listener(Generic[G]):
    """`welcome` makes a guest of a connection and the address it came from."""

    def __init__(self, loop: Loop, welcome: Callable[[socket.socket, str], G], most: int) -> None:
        self._loop = loop
        self._welcome = welcome
        self._most = most
        self._sockets: list[socket.socket] = []
        self._guests: dict[G, None] = {}

    def __iter__(self) -> Iterator[G]:
        return iter(list(self._guests))

    def listen(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sockets.append(sock)
        self._resume(sock)

    def admit(self, sock: socket.socket, source: str) -> G | None:
        """Take a connection in, if there is room or somebody idle."""
        if len(self._guests) >= self._most and not self._make_room():
            sock.close()
            return None
        guest = self._welcome(sock, source)
        self._guests[guest] = None
        guest.start()
        return guest

    def dismissed(self, guest: G) -> None:
        self._guests.pop(guest, None)

    def tick(self) -> None:
        now = time.monotonic()
        for guest in self:
            guest.tick(now)

    def close(self) -> None:
        """Nobody else comes in, and no socket is left for anybody to find."""
        for sock in self._sockets:
            self._loop.forget(sock)
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
            self._loop.forget(listening)
            self._loop.call_later(PAUSE, lambda: self._resume(listening))
            return
        self.admit(sock, source[0] if isinstance(source, tuple) else "")

    def _make_room(self) -> bool:
        idle = next((guest for guest in self._guests if not guest.introduced), None)
        if idle is not None:
            idle.close("others need its place, and it has not introduced itself")
        return idle is not None
