"""Kubeconfig files: where the API server is, whom to trust, and who one is.

Written as JSON, which is YAML, with every credential inside, so that one file can be handed on alone.
"""

import base64
import json
import os
from pathlib import Path

from imex_dra.sandbox.kubernetes.certificates import Certificate

Credential = dict[str, str]


def bearer(token: str) -> Credential:
    return {"token": token}


def certified(certificate: Certificate) -> Credential:
    return {
        "client-certificate-data": _inline(certificate.certificate),
        "client-key-data": _inline(certificate.key),
    }


def write(path: Path, *, url: str, authority: Path, user: str, credential: Credential) -> Path:
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
