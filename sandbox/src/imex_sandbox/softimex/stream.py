"""One connection that exchanges frames, with bounded memory and bounded waiting.

The remote end cannot make this process buffer more than a frame or two of input and `SEND_BUFFER` bytes of
output, or wait longer than `FRAME_TIMEOUT` seconds for the rest of a frame. A misbehaving remote end loses its
connection and affects nothing else.

A connection can be frozen to simulate a blocked network: nothing is received, nothing is sent, nothing is lost,
and neither end is notified.
"""

import os
import socket
import time
from collections import deque
from typing import Protocol

from imex_sandbox.softimex.errors import Malformed
from imex_sandbox.softimex.frames import (
    Decoder,
    Message,
    close_descriptor,
    encode,
    receive_with_descriptor,
    send_with_descriptor,
)
from imex_sandbox.softimex.loop import READ, WRITE, Loop

FRAME_TIMEOUT = 3.0
HANDSHAKE_TIMEOUT = 30.0
"""Longer, because a handshake takes CPU time: on a busy machine, giving up early only repeats that work."""
SEND_BUFFER = 256 * 1024
CHUNK = 64 * 1024


class Security(Protocol):
    """Encrypts a connection; raises BlockingIOError when it has to wait.

    A protocol, so that a daemon without TLS does not load `ssl`.
    """

    def secure(self, sock: socket.socket) -> socket.socket: ...
    def handshake(self, sock: socket.socket) -> None: ...
    def receive(self, sock: socket.socket, size: int) -> bytes: ...
    def send(self, sock: socket.socket, data: bytes) -> int: ...


class Stream:
    """Subclasses implement `on_open`, `on_message` and `on_close`. Nothing happens before `start`."""

    def __init__(self, loop: Loop, sock: socket.socket, security: Security | None = None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # the kernel would buffer megabytes
        self.alive = True
        self.delay = 0.0
        self.received_at = time.monotonic()
        self._loop = loop
        self._security = security
        self._sock = sock
        self._secured = False
        self._ready = False
        self._connecting = False
        self._frozen = False
        self._decoder = Decoder()
        self._queue: deque[tuple[bytes, int | None]] = deque()
        self._unsent_bytes = 0
        self._send_at = 0.0
        self._incomplete_since: float | None = self.received_at
        self._timeout = HANDSHAKE_TIMEOUT if security else FRAME_TIMEOUT

    def on_open(self) -> None:
        """Called when messages can be sent. By default the remote end sends first."""

    def on_message(self, message: Message, descriptor: int | None) -> None:
        """Raise `Malformed` to close the connection. The stream closes the descriptor afterwards."""
        raise NotImplementedError

    def on_close(self, reason: str) -> None:
        raise NotImplementedError

    def start(self, *, connecting: bool = False) -> None:
        self._connecting = connecting
        if connecting or self._security:
            self._watch()
        else:
            self._open()

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Queue a message. The stream closes the descriptor after sending it."""
        frame = encode(message)
        now = time.monotonic()
        # Never earlier than the message before, so that a delay that shrinks does not reorder messages.
        self._send_at = max(now + self.delay, self._send_at)
        self._unsent_bytes += len(frame)
        if self._send_at > now:
            self._loop.call_later(self._send_at - now, lambda: self._enqueue(frame, descriptor))
        else:
            self._enqueue(frame, descriptor)

    def freeze(self, frozen: bool) -> None:
        if self.alive and frozen != self._frozen:
            self._frozen = frozen
            self._watch()

    @property
    def has_unsent_data(self) -> bool:
        return self._unsent_bytes > 0

    def timed_out(self, now: float) -> bool:
        """Whether the remote end takes too long to complete the handshake or a frame."""
        return self._incomplete_since is not None and now - self._incomplete_since > self._timeout

    def close(self, reason: str) -> None:
        if not self.alive:
            return
        self.alive = False
        self._loop.unwatch(self._sock)
        self._sock.close()
        for _, descriptor in self._queue:
            close_descriptor(descriptor)
        self._queue.clear()
        self.on_close(reason)

    def _open(self) -> None:
        self._ready = True
        self._watch()
        self.on_open()

    def _watch(self) -> None:
        if self._frozen:
            self._loop.unwatch(self._sock)
        elif self.alive:
            writing = self._queue or not self._ready
            self._loop.watch(self._sock, READ | WRITE if writing else READ, self._serve)

    def _serve(self, events: int) -> None:
        try:
            if not self.alive:
                return
            if not self._ready:
                self._continue_opening()
            elif events & READ:
                self._read()
            if self._ready and events & WRITE:
                self._flush()
        except (OSError, Malformed) as error:
            self.close(str(error))
        except Exception:
            self._loop.report_exception()
            self.close("internal error")

    def _continue_opening(self) -> None:
        """Complete the TCP connection, then the TLS handshake."""
        if self._connecting and (code := self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            raise OSError(code, os.strerror(code))
        self._connecting = False
        try:
            if self._security:
                self._handshake(self._security)
        except BlockingIOError:
            return
        self._open()

    def _handshake(self, security: Security) -> None:
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
                self._decode(data, descriptor)
            else:
                self.close("closed by the remote end")
        finally:
            close_descriptor(descriptor)

    def _receive(self) -> tuple[bytes, int | None]:
        if self._security:
            return self._security.receive(self._sock, CHUNK), None
        if self._sock.family == socket.AF_UNIX:
            return receive_with_descriptor(self._sock, CHUNK)
        return self._sock.recv(CHUNK), None

    def _decode(self, data: bytes, descriptor: int | None) -> None:
        messages = self._decoder.feed(data)
        if messages:
            self.received_at = time.monotonic()
            self._incomplete_since, self._timeout = None, FRAME_TIMEOUT
        for message in messages:
            if self.alive:  # the message before may have closed the connection
                self.on_message(message, descriptor)
        if self._decoder.partial and self._incomplete_since is None:
            self._incomplete_since = time.monotonic()

    def _enqueue(self, frame: bytes, descriptor: int | None) -> None:
        if not self.alive:
            close_descriptor(descriptor)
            return
        self._queue.append((frame, descriptor))
        self._flush()
        if self._unsent_bytes > SEND_BUFFER:
            self.close(f"the remote end does not read: {self._unsent_bytes} bytes are unsent")

    def _flush(self) -> None:
        try:
            while self._queue and self._ready and not self._frozen:
                self._send_first()
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(str(error))
        self._watch()

    def _send_first(self) -> None:
        frame, descriptor = self._queue[0]
        if self._security:
            sent = self._security.send(self._sock, frame)
        elif descriptor is not None:
            sent = send_with_descriptor(self._sock, frame, descriptor)
        else:
            sent = self._sock.send(frame)
        # The kernel passes the descriptor with the first byte, so the rest of the frame goes without it.
        close_descriptor(descriptor)
        self._unsent_bytes -= sent
        self._queue.popleft()
        if sent < len(frame):
            self._queue.appendleft((frame[sent:], None))
