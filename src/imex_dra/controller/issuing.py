"""Issues certificates for IMEX daemons and the webhook, in a process of its own: the library would stay in memory.

`python -m imex_dra.controller.issuing` reads a `Request` from standard input and prints a `KeyPair`, both as JSON.
"""

import asyncio
import subprocess
import sys
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from imex_dra.api.names import DAEMON_NAME
from imex_dra.base.errors import ImexError

_CLOCK_SKEW = timedelta(hours=1)
"""A node whose clock is slow must accept a new certificate."""


class KeyPair(Struct, frozen=True):
    """In PEM."""

    key: str
    certificate: str


class Request(Struct, frozen=True):
    now: datetime
    not_after: datetime
    authority: KeyPair | None = None
    """None: issue a certificate authority."""
    name: str = DAEMON_NAME
    """DNS name in the certificate."""


async def issue(request: Request) -> KeyPair:
    argv = [sys.executable, "-m", "imex_dra.controller.issuing"]
    # In a thread: a child of the event loop would be left behind if the controller is told to end now.
    done = await asyncio.to_thread(
        subprocess.run, argv, input=msgspec.json.encode(request), capture_output=True, check=False
    )
    if done.returncode:
        cause = (done.stderr.decode(errors="replace").strip().splitlines() or ["no error output"])[-1]
        raise ImexError(f"no certificate can be issued: {cause}")
    return msgspec.json.decode(done.stdout, type=KeyPair)


def _issued(request: Request) -> KeyPair:
    # Only this process needs the library.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(request.now - _CLOCK_SKEW)
        .not_valid_after(request.not_after)
        .add_extension(x509.BasicConstraints(ca=request.authority is None, path_length=None), critical=True)
    )
    if request.authority is None:
        authority = name("imex-dra certificate authority")
        signed = builder.subject_name(authority).issuer_name(authority).sign(key, hashes.SHA256())
    else:
        signer = serialization.load_pem_private_key(request.authority.key.encode(), None)
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise SystemExit("the key of the certificate authority is not an EC key")
        issuer = x509.load_pem_x509_certificate(request.authority.certificate.encode()).subject
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        signed = (
            builder.subject_name(name(request.name[:64]))
            .issuer_name(issuer)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(request.name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(signer, hashes.SHA256())
        )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(private.decode(), signed.public_bytes(pem).decode())


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.json.encode(_issued(msgspec.json.decode(sys.stdin.buffer.read(), type=Request)))
    )
