"""kubectl as one user of one cluster, and the kubeconfig files that it and other clients read.

Kubeconfig files are written as JSON, which is valid YAML. Credentials are inlined, so that each file can be used
without others.
"""

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from imex_dra.base.errors import Rejected
from imex_sandbox.kubernetes.binaries import find
from imex_sandbox.kubernetes.certificates import Certificate

Credential = dict[str, str]

LIMIT = 150.0
"""Seconds. A guard against a hang: on two cores that start a rack, a call has taken more than a minute."""


class Kubectl:
    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def __call__(self, *words: str, stdin: str | None = None, within: float = LIMIT) -> str:
        """The output of kubectl. If kubectl fails, `Rejected` with its error message."""
        done = subprocess.run(
            [find("kubectl"), *words],
            input=stdin,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
        if done.returncode:
            raise Rejected(f"kubectl {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def get(self, *words: str) -> Any:
        return json.loads(self("get", "-o", "json", *words))

    def apply(self, *documents: dict[str, Any]) -> None:
        self("apply", "-f", "-", stdin=to_yaml(*documents))


def to_yaml(*documents: dict[str, Any]) -> str:
    # Not JSON: kubectl 1.32 parses the `---` between JSON documents as a number. Not a List either: kubectl would
    # drop the error messages of the server for its items.
    return yaml.safe_dump_all(documents)


def token_credential(token: str) -> Credential:
    return {"token": token}


def certificate_credential(certificate: Certificate) -> Credential:
    return {
        "client-certificate-data": _inline(certificate.certificate),
        "client-key-data": _inline(certificate.key),
    }


def write_kubeconfig(path: Path, *, url: str, authority: Path, user: str, credential: Credential) -> Path:
    cluster = {"server": url, "certificate-authority-data": _inline(authority)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "sandbox", "cluster": cluster}],
        "users": [{"name": user, "user": credential}],
        "contexts": [{"name": user, "context": {"cluster": "sandbox", "user": user}}],
        "current-context": user,
    }
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(document, file, indent=1)
    return path


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
