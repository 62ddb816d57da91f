"""Mutual TLS between daemons, with keys from PEM files.

Each side presents a certificate and verifies the other: a server against the certificate authority in
IMEX_SERVER_CERT_AUTH; a client against the one in IMEX_CLIENT_CERT_AUTH and by name, which is the peer's entry in
the nodes config file or IMEX_SECURITY_TARGET_OVERRIDE. Imported only if encryption is enabled, because `ssl`
takes memory.
"""

import socket
import ssl

from imex_sandbox.softimex.config import Config
from imex_sandbox.softimex.daemonlog import DaemonLog
from imex_sandbox.softimex.errors import StartError

MAX_RECORD = 16 * 1024
"""The size limit of a TLS record."""


class TlsSecurity:
    """One side of an encrypted connection; the server side has no `server_name`."""

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

    def receive(self, sock: socket.socket, size: int) -> bytes:
        # A whole record: the selector does not report bytes that OpenSSL has already read from the socket.
        try:
            return sock.recv(min(size, MAX_RECORD))
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
    def __init__(self, config: Config, log: DaemonLog) -> None:
        self._config = config
        self._log = log
        self._server, self._client = _contexts(config)

    def to_peer(self, name: str) -> TlsSecurity:
        return TlsSecurity(self._client, _server_name(self._config.imex_security_target_override or name))

    def from_peer(self) -> TlsSecurity:
        return TlsSecurity(self._server, None)

    def reload(self) -> None:
        """Load the files again, for new connections. If that fails, the current keys stay in use."""
        try:
            self._server, self._client = _contexts(self._config)
        except StartError as error:
            self._log.error(f"TLS keys not reloaded, the current keys stay in use: {error}")


def _server_name(name: str) -> str | bytes:
    """As bytes if possible: for a string, Python loads the IDNA tables, which take 0.2 MB."""
    return name.encode() if name.isascii() else name


def _contexts(config: Config) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    server.num_tickets = 0  # daemons never resume a TLS session, and each ticket keeps one in memory
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
        settings = ", ".join(f"{name}={path}" for name, path in paths.items())
        raise StartError(f"cannot load the TLS files ({error.strerror or error}): {settings}") from error


def _refuse_password() -> str:
    raise StartError("a TLS key is protected by a password, which soft IMEX cannot ask for: use a key without one")
