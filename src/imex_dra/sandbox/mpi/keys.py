"""How a launcher and its workers find and trust each other: by the ssh key that the MPI Operator makes per job.

Simulated containers share one network, so a worker listens on an abstract unix socket. Its name is made from the
job's public key and the pod's host name: no two jobs, namespaces or clusters meet. Anybody may connect, or take
the name first, so both sides prove that they hold the private key before anything is started.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from imex_dra.base.errors import Forbidden, Misconfigured
from imex_dra.sandbox.mpi.wire import Wire

MOUNTS = Path("/proc/self/mountinfo")
_LAUNCHER, _WORKER = b"launcher", b"worker"


class Key(NamedTuple):
    private: bytes
    public: bytes

    def address(self, host: str) -> str:
        """Starts with a zero byte: an abstract socket, gone with the process that listens."""
        return f"\0imex-mpi/{hashlib.sha256(self.public).hexdigest()[:24]}/{host}"

    def proof(self, role: bytes, *nonces: str) -> str:
        words = b"/".join([role, *(nonce.encode() for nonce in nonces)])
        return hmac.new(self.private, words, hashlib.sha256).hexdigest()


def find() -> Key:
    """Wherever the job's secret is mounted: sshAuthMountPath may say. (The machine's own ~/.ssh is no mount.)"""
    for place in _mount_points(MOUNTS.read_text().splitlines()):
        if (place / "id_rsa").is_file() and (place / "id_rsa.pub").is_file():
            return Key((place / "id_rsa").read_bytes(), (place / "id_rsa.pub").read_bytes())
    raise Misconfigured(
        "no ssh key of an MPIJob is mounted here: other hosts are reached in pods of an MPIJob only"
    )


def _mount_points(lines: Iterable[str]) -> list[Path]:
    return [Path(line.split()[4].replace("\\040", " ")) for line in lines]


def admit(wire: Wire, key: Key) -> None:
    """The worker's side: raises unless the other end holds the key."""
    own = secrets.token_hex(16)
    wire.send({"nonce": own})
    answer = wire.receive() or {}
    nonce, proof = str(answer.get("nonce")), str(answer.get("proof"))
    if not hmac.compare_digest(proof.encode(), key.proof(_LAUNCHER, own, nonce).encode()):
        raise Forbidden("a launcher without this job's key was refused")
    wire.send({"proof": key.proof(_WORKER, own, nonce)})


def introduce(wire: Wire, key: Key, host: str) -> None:
    """The launcher's side: raises unless the other end holds the key too."""
    theirs = str((wire.receive() or {}).get("nonce"))
    own = secrets.token_hex(16)
    wire.send({"nonce": own, "proof": key.proof(_LAUNCHER, theirs, own)})
    proof = str((wire.receive() or {}).get("proof"))
    if not hmac.compare_digest(proof.encode(), key.proof(_WORKER, theirs, own).encode()):
        raise Forbidden(f"what answers for {host} does not hold this job's key")
