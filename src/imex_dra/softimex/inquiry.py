"""Asking one daemon over its command service, from a program that has nothing else to do meanwhile."""

import socket
import time
from collections.abc import Iterator

from imex_dra.softimex.config import Config
from imex_dra.softimex.errors import Malformed, QueryError
from imex_dra.softimex.frames import Decoder, Message, encode
from imex_dra.softimex.noderoot import NodeRoot
from imex_dra.softimex.sockets import family

CONNECT_SECONDS = 2.0

Endpoint = tuple[str, int] | str


def endpoint_of(config: Config, root: NodeRoot) -> Endpoint:
    """Where the daemon of a configuration listens for commands."""
    if not config.imex_cmd_enabled:
        raise QueryError("the daemon can't be asked: IMEX_CMD_ENABLED is 0 in its configuration")
    if config.imex_cmd_unix_domain_path:
        return config.imex_cmd_unix_domain_path
    address = config.imex_cmd_bind_interface_ip or next(iter(root.addresses()), "127.0.0.1")
    return address, config.imex_cmd_port


def states(endpoint: Endpoint, query: str, seconds: float | None) -> Iterator[str]:
    """The states that the daemon tells, until it ends or the time is over."""
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
        raise QueryError(f"no nvidia-imex answers at {_name(endpoint)}: {error}. Is it running?") from error
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


def _name(endpoint: Endpoint) -> str:
    return endpoint if isinstance(endpoint, str) else f"{endpoint[0]} port {endpoint[1]}"
