"""Authenticated connections from a launcher to the rank servers of its workers.

The MPI Operator creates an ssh key for each job. Simulated containers share one network, so a rank server listens
on an abstract Unix socket whose name is derived from the public key of the job and the host name of the pod.
Sockets of different jobs, namespaces and clusters therefore never have the same name. Any process on the machine
can connect to such a socket, or listen on it first. Both ends prove that they have the private key before
anything is started.
"""

import hashlib
import hmac
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from imex_dra.base.errors import Forbidden, Misconfigured
from imex_sandbox.softimex.frames import Decoder, Message, encode

_MOUNTINFO = Path("/proc/self/mountinfo")
_LAUNCHER, _WORKER = b"launcher", b"worker"


class JobKey(NamedTuple):
    private: bytes
    public: bytes

    def address(self, host: str) -> str:
        """Begins with a zero byte: an abstract socket, which exists as long as its server."""
        return f"\0imex-mpi/{hashlib.sha256(self.public).hexdigest()[:24]}/{host}"

    def proof(self, role: bytes, *nonces: str) -> str:
        message = b"/".join([role, *(nonce.encode() for nonce in nonces)])
        return hmac.new(self.private, message, hashlib.sha256).hexdigest()


def find_job_key() -> JobKey:
    """The key in the mounted secret of the job.

    All mount points are searched, because `sshAuthMountPath` of an MPIJob can be any path. A ~/.ssh of the
    machine is not a mount point.
    """
    for directory in _mount_points(_MOUNTINFO.read_text().splitlines()):
        if (directory / "id_rsa").is_file() and (directory / "id_rsa.pub").is_file():
            return JobKey((directory / "id_rsa").read_bytes(), (directory / "id_rsa.pub").read_bytes())
    raise Misconfigured(
        "no ssh key of an MPIJob is mounted in this container: ranks on other hosts require a pod of an MPIJob"
    )


def _mount_points(lines: Iterable[str]) -> list[Path]:
    return [Path(line.split()[4].replace("\\040", " ")) for line in lines]


class Connection:
    """Messages on a connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = Decoder()
        self._messages: list[Message] = []

    def fileno(self) -> int:
        return self._sock.fileno()

    def set_timeout(self, seconds: float | None) -> None:
        """For each `send` or `receive`."""
        self._sock.settimeout(seconds)

    def send(self, message: Message) -> None:
        self._sock.sendall(encode(message))

    def receive(self) -> Message | None:
        """Wait for a message. None if the other end closed the connection."""
        while not self._messages:
            messages = self.read()
            if messages is None:
                return None
            self._messages += messages
        return self._messages.pop(0)

    def read(self) -> list[Message] | None:
        """The messages that one read completes, possibly none. None if the other end closed the connection."""
        pending, self._messages = self._messages, []
        if pending:
            return pending
        data = self._sock.recv(65536)
        return self._decoder.feed(data) if data else None


def authenticate_launcher(connection: Connection, key: JobKey) -> None:
    """The handshake of a worker."""
    worker_nonce = secrets.token_hex(16)
    connection.send({"nonce": worker_nonce})
    reply = connection.receive() or {}
    launcher_nonce, proof = str(reply.get("nonce")), str(reply.get("proof"))
    if not hmac.compare_digest(proof.encode(), key.proof(_LAUNCHER, worker_nonce, launcher_nonce).encode()):
        raise Forbidden("rejected a launcher that does not have the key of this job")
    connection.send({"proof": key.proof(_WORKER, worker_nonce, launcher_nonce)})


def authenticate_worker(connection: Connection, key: JobKey, host: str) -> None:
    """The handshake of a launcher."""
    worker_nonce = str((connection.receive() or {}).get("nonce"))
    launcher_nonce = secrets.token_hex(16)
    connection.send({"nonce": launcher_nonce, "proof": key.proof(_LAUNCHER, worker_nonce, launcher_nonce)})
    proof = str((connection.receive() or {}).get("proof"))
    if not hmac.compare_digest(proof.encode(), key.proof(_WORKER, worker_nonce, launcher_nonce).encode()):
        raise Forbidden(f"the process that responds as {host} does not have the key of this job")
