"""One thread that waits for sockets, timers and signals.

In every round ready sockets are served before timers that are due, so that a process which was stopped for a
while first reads what had arrived, and only then asks who was silent. An exception that nobody expected is
reported and ends nothing but the action that raised it.
"""

import heapq
import itertools
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

Watcher = Callable[[int], None]


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stopped = False
        self.on_fault: Callable[[str], object] = sys.stderr.write

    def watch(self, sock: socket.socket, events: int, watcher: Watcher) -> None:
        """Call the watcher with what the socket is ready for; a second call changes the first."""
        if sock.fileno() in self._selector.get_map():
            self._selector.modify(sock, events, watcher)
        else:
            self._selector.register(sock, events, watcher)

    def forget(self, sock: socket.socket) -> None:
        if sock.fileno() in self._selector.get_map():
            self._selector.unregister(sock)

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), action))

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        def again() -> None:
            self.call_later(seconds, again)
            action()

        self.call_later(seconds, again)

    def on_signals(self, handlers: dict[signal.Signals, Callable[[], None]]) -> None:
        """Handlers run in the loop, never inside somebody else's instruction."""
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        for number in handlers:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

        self._wakeup = (reader, writer)

        def deliver(_: int) -> None:
            for number in set(reader.recv(4096)):
                handlers[signal.Signals(number)]()

        self.watch(reader, READ, deliver)

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._selector.close()

    def run(self) -> None:
        while not self._stopped:
            self.step()

    def step(self, most: float | None = None) -> None:
        """Wait until something is ready or due, `most` seconds at most, and serve it."""
        for key, events in self._selector.select(self._patience(most)):
            self._attempt(partial(key.data, events))
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self._attempt(heapq.heappop(self._timers)[2])

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            self.report_fault()

    def report_fault(self) -> None:
        import traceback

        self.on_fault(f"a fault of ours, please report it: {traceback.format_exc()}")

    def _patience(self, most: float | None) -> float | None:
        if not self._timers:
            return most
        due = max(0.0, self._timers[0][0] - time.monotonic())
        return due if most is None else min(due, most)
