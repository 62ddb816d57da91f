"""The command port, on which `nvidia-imex-ctl` queries a daemon: the service of the daemon, and the client.

    {"query": "state"}   {"state": "READY"}
    {"query": "node"}    {"index": 0, "state": …, "version": …, "connections": {"1": {"host": …, "status": …}}}
    {"query": "watch"}   {"state": …}, immediately and after every change

The service is read-only and needs no authorization. It closes connections that send no query.
"""

import socket
import time
from collections.abc import Callable, Iterator
from enum import IntEnum

from imex_sandbox.softimex.config import Config
from imex_sandbox.softimex.errors import Malformed, QueryError
from imex_sandbox.softimex.frames import Decoder, Message, encode
from imex_sandbox.softimex.loop import Loop
from imex_sandbox.softimex.noderoot import DROP, NodeRoot
from imex_sandbox.softimex.sockets import Listener, family
from imex_sandbox.softimex.stream import Stream

MAX_SESSIONS = 128
IDLE_SECONDS = 10.0
TICK_SECONDS = 0.5
CONNECT_SECONDS = 2.0

Endpoint = tuple[str, int] | str


class DaemonState(IntEnum):
    """The states that `nvidia-imex-ctl` prints, with the numbers that monitoring tools use."""

    INITIALIZING = 0
    STARTING_AUTH_SERVER = 1
    WAITING_FOR_PEERS = 2
    WAITING_FOR_RECOVERY = 3
    INIT_GPU = 4
    READY = 5
    SHUTTING_DOWN = 6
    UNAVAILABLE = 7


class Session(Stream):
    """One connection to the command port. It is established once it watches the state."""

    def __init__(self, service: "CommandService", sock: socket.socket, source: str) -> None:
        super().__init__(service.loop, sock)
        self.established = False
        self._service = service
        self._source = source
        self.freeze(service.network_fault(source) == DROP)

    def on_message(self, message: Message, descriptor: int | None) -> None:
        query = message.get("query")
        if query == "node":
            self.send(self._service.describe())
        elif query in ("state", "watch"):
            self.established = self.established or query == "watch"
            self.send({"state": self._service.state.name})
        else:
            raise Malformed("the query must be state, node or watch")

    def on_close(self, reason: str) -> None:
        self._service.sessions.remove(self)

    def tick(self, now: float) -> None:
        self.freeze(self._service.network_fault(self._source) == DROP)
        if self.timed_out(now) or (not self.established and now - self.received_at > IDLE_SECONDS):
            self.close("no query received in time")


class CommandService:
    def __init__(
        self, loop: Loop, describe_node: Callable[[], Message], network_fault: Callable[[str], float]
    ) -> None:
        self.loop = loop
        self.state = DaemonState.INITIALIZING
        self.network_fault = network_fault
        self._describe_node = describe_node
        self.sessions = Listener(loop, lambda sock, source: Session(self, sock, source), MAX_SESSIONS)

    def start(self, listening: list[socket.socket]) -> None:
        for sock in listening:
            self.sessions.listen(sock)
        self.loop.every(TICK_SECONDS, self.sessions.tick)

    def describe(self) -> Message:
        return {**self._describe_node(), "state": self.state.name}

    def set_state(self, state: DaemonState) -> None:
        """Set the daemon's state and notify the sessions that watch it."""
        self.state = state
        for session in self.sessions:
            if session.established:
                session.send({"state": state.name})


def command_endpoint(config: Config, root: NodeRoot) -> Endpoint:
    """Where the daemon with this configuration listens for commands."""
    if not config.imex_cmd_enabled:
        raise QueryError("cannot query the daemon: IMEX_CMD_ENABLED is 0 in its configuration. Set it to 1")
    if config.imex_cmd_unix_domain_path:
        return config.imex_cmd_unix_domain_path
    address = config.imex_cmd_bind_interface_ip or next(iter(root.addresses()), "127.0.0.1")
    return address, config.imex_cmd_port


def query_states(endpoint: Endpoint, query: str, seconds: float | None) -> Iterator[str]:
    """The states that the daemon reports, until it ends or the time is over. Blocks the caller."""
    with _connect(endpoint) as sock:
        sock.sendall(encode({"query": query}))
        for message in _messages(sock, seconds):
            yield str(message.get("state"))


def _connect(endpoint: Endpoint) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX if isinstance(endpoint, str) else family(endpoint[0]))
    sock.settimeout(CONNECT_SECONDS)
    try:
        sock.connect(endpoint)
    except OSError as error:
        sock.close()
        name = endpoint if isinstance(endpoint, str) else f"{endpoint[0]} port {endpoint[1]}"
        raise QueryError(f"cannot connect to nvidia-imex at {name}: {error}. Is it running?") from error
    return sock


def _messages(sock: socket.socket, seconds: float | None) -> Iterator[Message]:
    decoder = Decoder()
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        remaining = None if deadline is None else max(0.001, deadline - time.monotonic())
        sock.settimeout(remaining)
        try:
            data = sock.recv(65536)
            messages = decoder.feed(data)
        except (OSError, Malformed):
            return
        yield from messages
        if not data:
            return
