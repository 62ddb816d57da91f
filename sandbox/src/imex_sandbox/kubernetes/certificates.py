"""The certificate authority of a cluster, as kubeadm sets one up.

Certificates are made with the openssl command, so that no cryptography library is needed. Only the owner can read
keys. Certificates contain the key identifiers that strict verifiers require.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes.binaries import find

DAYS = "3650"

_CONFIG = """\
[req]
distinguished_name = subject
prompt = no
x509_extensions = extensions
[subject]
{subject}
[extensions]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
{extensions}
"""


class Certificate(NamedTuple):
    certificate: Path
    key: Path


class Authority:
    """Creates a new CA certificate and key in its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._ca = self._make(
            "ca",
            ["CN = imex-dra-sandbox"],
            ["basicConstraints = critical, CA:TRUE", "keyUsage = critical, keyCertSign, cRLSign"],
        )

    @property
    def certificate(self) -> Path:
        return self._ca.certificate

    def server(self, file: str, names: Sequence[str]) -> Certificate:
        """A serving certificate. Names are subject alternative names such as `IP:127.0.0.1` or `DNS:localhost`."""
        return self._sign(file, [f"CN = {file}"], "serverAuth", [f"subjectAltName = {','.join(names)}"])

    def client(self, file: str, user: str, groups: Sequence[str]) -> Certificate:
        """A client certificate for a Kubernetes user and its groups."""
        organizations = [f"{number}.O = {group}" for number, group in enumerate(groups)]
        return self._sign(file, [*organizations, f"CN = {user}"], "clientAuth", [])

    def _sign(self, file: str, subject: Sequence[str], usage: str, extensions: Sequence[str]) -> Certificate:
        usages = ["keyUsage = critical, digitalSignature", f"extendedKeyUsage = {usage}"]
        signer = ["-CA", str(self._ca.certificate), "-CAkey", str(self._ca.key)]
        return self._make(file, subject, [*usages, *extensions], *signer)

    def _make(self, file: str, subject: Sequence[str], extensions: Sequence[str], *signer: str) -> Certificate:
        config, certificate, key = (self._directory / f"{file}.{suffix}" for suffix in ("cnf", "crt", "key"))
        config.write_text(_CONFIG.format(subject="\n".join(subject), extensions="\n".join(extensions)))
        write_key(key)
        _openssl("req", "-x509", "-days", DAYS, "-config", config, "-key", key, "-out", certificate, *signer)
        return Certificate(certificate, key)


def write_key(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


def _openssl(*words: str | Path) -> None:
    done = subprocess.run([find("openssl"), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Misconfigured(f"openssl {words[0]} failed (openssl 3 or later is required): {done.stderr.strip()}")
