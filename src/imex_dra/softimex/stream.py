"""One connection, from the first byte to the last: frames in, frames out, bounded in memory and in time.

Whoever is at the other end, it can't make us hold more than a frame or two that came in and `OUTBOX` bytes
that wait to go out, wait longer than `PATIENCE` for the rest of a frame, or fail in any other way than by
losing this one connection. The first frame of an encrypted one may take longer: a handshake is work, and on a
busy machine those who give it up early have all of it to do again.

A connection may be frozen, as if its cable were cut: nothing comes in, nothing goes out, nothing is lost, and
neither end is told.
"""

import os
import socket
import time
from collections import deque
from typing import Protocol

from imex_dra.softimex import descriptors
from imex_dra.softimex.errors import Malformed
from imex_dra.softimex.frames import Decoder, Message, encode
from imex_dra.softimex.loop import READ, WRITE, Loop

PATIENCE = 3.0
HANDSHAKE_PATIENCE = 30.0
OUTBOX = 256 * 1024
CHUNK = 64 * 1024


class Security(Protocol):
    """Encrypts a connection; raises BlockingIOError when it has to wait."""

    def secure(self, sock: socket.socket) -> socket.socket: ...
    def handshake(self, sock: socket.socket) -> None: ...
    def receive(self, sock: socket.socket, most: int) -> bytes: ...
    def send(self, sock: socket.socket, data: bytes) -> int: ...


class Stream:
    """Subclasses say what `opened`, `received` and `closed` mean. Nothing happens before `start`."""

    def __init__(self, loop: Loop, sock: socket.socket, security: Security | None = None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, OUTBOX)  # the kernel would keep megabytes for it
        self.alive = True
        self.delay = 0.0
        self.heard_at = time.monotonic()
        self._loop = loop
        self._security = security
        self._sock = sock
        self._secured = False
        self._ready = False
        self._connecting = False
        self._frozen = False
        self._decoder = Decoder()
        self._outbox: deque[tuple[bytes, int | None]] = deque()
        self._waiting_bytes = 0
        self._release_at = 0.0
        self._slow_since: float | None = self.heard_at
        self._patience = HANDSHAKE_PATIENCE if security else PATIENCE

    def opened(self) -> None:
        """The connection stands; by default the other end speaks first."""

    def received(self, message: Message, descriptor: int | None) -> None:
        """Raise `Malformed` to refuse. The stream closes the descriptor afterwards."""
        raise NotImplementedError

    def closed(self, why: str) -> None:
        raise NotImplementedError

    def start(self, *, connecting: bool = False) -> None:
        self._connecting = connecting
        if connecting or self._security:
            self._watch()
        else:
            self._open()

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Queue a message; the descriptor that goes with it is closed once it is sent."""
        frame = encode(message)
        now = time.monotonic()
        self._release_at = max(now + self.delay, self._release_at)
        self._waiting_bytes += len(frame)
        if self._release_at > now:
            self._loop.call_later(self._release_at - now, lambda: self._enqueue(frame, descriptor))
        else:
            self._enqueue(frame, descriptor)

    def freeze(self, frozen: bool) -> None:
        if self.alive and frozen != self._frozen:
            self._frozen = frozen
            self._watch()

    @property
    def busy(self) -> bool:
        return self._waiting_bytes > 0

    def overdue(self, now: float) -> bool:
        """Whether the other end has kept us waiting for the rest of something for too long."""
        return self._slow_since is not None and now - self._slow_since > self._patience

    def close(self, why: str) -> None:
        if not self.alive:
            return
        self.alive = False
        self._loop.forget(self._sock)
        self._sock.close()
        for _, descriptor in self._outbox:
            descriptors.close(descriptor)
        self._outbox.clear()
        self.closed(why)

    def _open(self) -> None:
        self._ready = True
        self._watch()
        self.opened()

    def _watch(self) -> None:
        if self._frozen:
            self._loop.forget(self._sock)
        elif self.alive:
            writing = self._outbox or not self._ready
            self._loop.watch(self._sock, READ | WRITE if writing else READ, self._serve)

    def _serve(self, events: int) -> None:
        try:
            if not self.alive:
                return
            if not self._ready:
                self._proceed()
            elif events & READ:
                self._read()
            if self._ready and events & WRITE:
                self._flush()
        except (OSError, Malformed) as error:
            self.close(str(error))
        except Exception:
            self._loop.report_fault()
            self.close("a fault of ours")

    def _proceed(self) -> None:
        """From the connection attempt to the first frame."""
        if self._connecting and (code := self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            raise OSError(code, os.strerror(code))
        self._connecting = False
        try:
            if self._security:
                self._shake_hands(self._security)
        except BlockingIOError:
            return
        self._open()

    def _shake_hands(self, security: Security) -> None:
        if not self._secured:
            self._sock = security.secure(self._sock)
            self._secured = True
        security.handshake(self._sock)

    def _read(self) -> None:
        try:
            data, descriptor = self._receive()
        except BlockingIOError:
            return
        try:
            if data:
                self._digest(data, descriptor)
            else:
                self.close("it closed the connection")
        finally:
            descriptors.close(descriptor)

    def _receive(self) -> tuple[bytes, int | None]:
        if self._security:
            return self._security.receive(self._sock, CHUNK), None
        if self._sock.family == socket.AF_UNIX:
            return descriptors.receive(self._sock, CHUNK)
        return self._sock.recv(CHUNK), None

    def _digest(self, data: bytes, descriptor: int | None) -> None:
        messages = self._decoder.feed(data)
        if messages:
            self.heard_at = time.monotonic()
            self._slow_since, self._patience = None, PATIENCE
        for message in messages:
            if self.alive:
                self.received(message, descriptor)
        if self._decoder.partial and self._slow_since is None:
            self._slow_since = time.monotonic()

    def _enqueue(self, frame: bytes, descriptor: int | None) -> None:
        if not self.alive:
            descriptors.close(descriptor)
            return
        self._outbox.append((frame, descriptor))
        self._flush()
        if self._waiting_bytes > OUTBOX:
            self.close(f"it does not read: {self._waiting_bytes} bytes wait for it")

    def _flush(self) -> None:
        try:
            while self._outbox and self._ready and not self._frozen:
                self._send_first()
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(str(error))
        self._watch()

    def _send_first(self) -> None:
        frame, descriptor = self._outbox[0]
        if self._security:
            sent = self._security.send(self._sock, frame)
        elif descriptor is not None:
            sent = descriptors.send(self._sock, frame, descriptor)
        else:
            sent = self._sock.send(frame)
        descriptors.close(descriptor)
        self._waiting_bytes -= sent
        self._outbox.popleft()
        if sent < len(frame):
            self._outbox.appendleft((frame[sent:], None))
