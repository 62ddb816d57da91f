"""An HTTP server for watches, in a process of its own, so that its CPU time is not measured.

`/initial/N` streams a list of N Pods; `/live/N` streams an empty list and then N Pods as watch events. Each
event is one HTTP chunk, as the real API server writes it. All events are encoded before the first is sent, so
that the reader never waits. The process ends with its parent.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bench import pods


@contextmanager
def serving() -> Iterator[str]:
    """The server's URL."""
    command = [sys.executable, "-m", "bench.stream"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        try:
            yield f"http://127.0.0.1:{child.stdout.readline().strip()}"
        finally:
            child.stdin.close()


class Watch(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    encoded: dict[str, list[bytes]] = {}

    def do_GET(self) -> None:
        _, kind, count, *_ = self.path.split("/")
        chunks = self._chunks(kind, int(count))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(ConnectionError):
            for chunk in chunks:
                self.wfile.write(chunk)
            self.rfile.read(1)  # until the client disconnects
        self.close_connection = True

    def _chunks(self, kind: str, count: int) -> list[bytes]:
        name = f"{kind} {count}"
        if name not in self.encoded:
            events = [pods.added(number) for number in range(count)]
            events.insert(0 if kind == "live" else count, pods.list_end())
            self.encoded[name] = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
        return self.encoded[name]

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the request log off the terminal, which shows the figures."""


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Watch)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
