"""Mutual TLS between daemons, with keys from PEM files.

Each side proves who it is and checks the other: a server against the authority in IMEX_SERVER_CERT_AUTH, a
client against the one in IMEX_CLIENT_CERT_AUTH and by name: the peer's entry in the nodes file, or what
IMEX_SECURITY_TARGET_OVERRIDE says. Only imported when encryption is on, because it costs memory.
"""

import socket
import ssl

from imex_dra.softimex.config import Config
from imex_dra.softimex.errors import StartError
from imex_dra.softimex.journal import Journal

RECORD = 16 * 1024
"""The longest that TLS has."""


class Secured:
    """One side of an encrypted connection."""

    def __init__(self, context: ssl.SSLContext, server_name: str | bytes | None) -> None:
        self._context = context
        self._server_name = server_name

    def secure(self, sock: socket.socket) -> socket.socket:
        return self._context.wrap_socket(
            sock,
            server_side=self._server_name is None,
            server_hostname=self._server_name,
            do_handshake_on_connect=False,
        )

    def handshake(self, sock: socket.socket) -> None:
        assert isinstance(sock, ssl.SSLSocket)
        try:
            sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def receive(self, sock: socket.socket, most: int) -> bytes:
        """A whole record, so that none is left half read inside the library."""
        try:
            return sock.recv(min(most, RECORD))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLEOFError:
            return b""

    def send(self, sock: socket.socket, data: bytes) -> int:
        try:
            return sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None


class Tls:
    def __init__(self, config: Config, journal: Journal) -> None:
        self._config = config
        self._journal = journal
        self._server, self._client = _contexts(config)

    def to_peer(self, name: str) -> Secured:
        return Secured(self._client, _server_name(self._config.imex_security_target_override or name))

    def from_peer(self) -> Secured:
        return Secured(self._server, None)

    def reload(self) -> None:
        """New files for new connections; files that don't work leave the old keys in use."""
        try:
            self._server, self._client = _contexts(self._config)
        except StartError as error:
            self._journal.error(f"keys not reloaded, the old ones stay in use: {error}")


def _server_name(name: str) -> str | bytes:
    """As bytes where it can be: for text Python loads the tables of international names, 0.2 MB."""
    return name.encode() if name.isascii() else name


def _contexts(config: Config) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    server.num_tickets = 0  # nobody resumes a session here, and each ticket keeps one in memory
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context, side in ((server, "SERVER"), (client, "CLIENT")):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load(context, config, side)
    return server, client


def _load(context: ssl.SSLContext, config: Config, side: str) -> None:
    key = f"IMEX_{side}_KEY"
    certificate = f"IMEX_{side}_CERT"
    authority = f"IMEX_{side}_CERT_AUTH"
    paths = {name: getattr(config, name.lower()) for name in (key, certificate, authority)}
    try:
        context.load_cert_chain(paths[certificate], paths[key], password=_refuse_password)
        context.load_verify_locations(paths[authority])
    except OSError as error:
        named = ", ".join(f"{name}={path}" for name, path in paths.items())
        raise StartError(f"can't load the TLS files ({error.strerror or error}): {named}") from error


def _refuse_password() -> str:
    raise StartError("a TLS key is protected by a password: soft IMEX can't ask for it")
