"""kubectl as one user of one cluster."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.kubernetes.binaries import find


class Kubectl:
    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def __call__(self, *words: str, stdin: str | None = None, within: float = 60) -> str:
        """What kubectl prints; if it fails, `Rejected` with what it says."""
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
        self("apply", "-f", "-", stdin=in_yaml(*documents))


def in_yaml(*documents: dict[str, Any]) -> str:
    """Several in JSON are too much for kubectl 1.32, which takes the `---` for a number; in a List the server's
    own words on what is wrong would be lost.
    """
    return yaml.safe_dump_all(documents)
