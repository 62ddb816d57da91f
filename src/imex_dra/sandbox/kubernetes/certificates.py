"""A certificate authority of a cluster's own, as a cluster set up by kubeadm has one.

Made with the openssl command, so that neither a crypto library nor a hand-written encoder is needed. Keys
are readable by their owner only. Certificates carry the key identifiers that strict verifiers demand.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes.binaries import find

DAYS = "3650"

_CONFIG = """\
[req]
distinguished_name = name
prompt = no
x509_extensions = extensions
[name]
{name}
[extensions]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
{extensions}
"""


class Certificate(NamedTuple):
    certificate: Path
    key: Path


class Authority:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._own = self._make(
            "ca",
            ["CN = imex-dra-sandbox"],
            ["basicConstraints = critical, CA:TRUE", "keyUsage = critical, keyCertSign, cRLSign"],
        )

    @property
    def certificate(self) -> Path:
        return self._own.certificate

    def server(self, file: str, alternatives: Sequence[str]) -> Certificate:
        """A serving certificate; alternatives like `IP:127.0.0.1` or `DNS:localhost`."""
        return self._signed(file, [f"CN = {file}"], "serverAuth", [f"subjectAltName = {','.join(alternatives)}"])

    def client(self, file: str, user: str, groups: Sequence[str]) -> Certificate:
        """A certificate that proves a Kubernetes user and its groups."""
        organizations = [f"{number}.O = {group}" for number, group in enumerate(groups)]
        return self._signed(file, [*organizations, f"CN = {user}"], "clientAuth", [])

    def _signed(self, file: str, name: Sequence[str], usage: str, extensions: Sequence[str]) -> Certificate:
        ours = ["keyUsage = critical, digitalSignature", f"extendedKeyUsage = {usage}", *extensions]
        return self._make(file, name, ours, "-CA", str(self._own.certificate), "-CAkey", str(self._own.key))

    def _make(self, file: str, name: Sequence[str], extensions: Sequence[str], *signer: str) -> Certificate:
        config, certificate, key = (self._directory / f"{file}.{suffix}" for suffix in ("cnf", "crt", "key"))
        config.write_text(_CONFIG.format(name="\n".join(name), extensions="\n".join(extensions)))
        write_key(key)
        _openssl("req", "-x509", "-days", DAYS, "-config", config, "-key", key, "-out", certificate, *signer)
        return Certificate(certificate, key)


def write_key(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


def _openssl(*words: str | Path) -> None:
    done = subprocess.run([find("openssl"), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Misconfigured(f"openssl {words[0]} failed (version 3 or later is needed): {done.stderr.strip()}")
