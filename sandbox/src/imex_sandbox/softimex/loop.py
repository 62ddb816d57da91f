"""A single-threaded event loop for sockets, timers and signals.

An unexpected exception is reported and ends only the callback that raised it.
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
        self.on_exception: Callable[[str], object] = sys.stderr.write

    def watch(self, sock: socket.socket, events: int, watcher: Watcher) -> None:
        """Call the watcher with the events that the socket is ready for. Replaces an earlier watcher."""
        if sock.fileno() in self._selector.get_map():
            self._selector.modify(sock, events, watcher)
        else:
            self._selector.register(sock, events, watcher)

    def unwatch(self, sock: socket.socket) -> None:
        if sock.fileno() in self._selector.get_map():
            self._selector.unregister(sock)

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), action))

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        def again() -> None:
            # Scheduled first, so that an action that raises is still called again.
            self.call_later(seconds, again)
            action()

        self.call_later(seconds, again)

    def on_signals(self, handlers: dict[signal.Signals, Callable[[], None]]) -> None:
        """Run the handlers as callbacks of the loop, so that they never interrupt other code."""
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

    def step(self, timeout: float | None = None) -> None:
        """Wait until a socket is ready, a timer is due or the timeout expires, and run the callbacks."""
        # Sockets before timers: a process that was suspended first reads the messages that arrived meanwhile,
        # and only then checks which peers have timed out.
        for key, events in self._selector.select(self._wait_seconds(timeout)):
            self._call(partial(key.data, events))
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self._call(heapq.heappop(self._timers)[2])

    def report_exception(self) -> None:
        import traceback  # here, because a daemon without errors does not need it in memory

        self.on_exception(f"internal error, please report it: {traceback.format_exc()}")

    def _call(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            self.report_exception()

    def _wait_seconds(self, timeout: float | None) -> float | None:
        if not self._timers:
            return timeout
        due = max(0.0, self._timers[0][0] - time.monotonic())
        return due if timeout is None else min(due, timeout)
