"""The real helm on the chart of this tree."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from imex_sandbox.kubernetes import binaries
from tests.paths import DEPLOY

CHART = DEPLOY / "helm/imex-dra"


def require() -> None:
    if binaries.missing(["helm"]):
        pytest.skip("helm not found; run make kube to build it")


class HelmFailed(AssertionError):
    pass


def helm(*words: str, kubeconfig: Path | None = None, within: float = 60) -> str:
    """Its output; HelmFailed with its error message."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig or "/nowhere")}
    argv = [str(binaries.find("helm")), *words]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=within)
    if done.returncode:
        raise HelmFailed(f"{' '.join(argv)}: {done.stdout}{done.stderr}")
    return done.stdout


def template(
    *options: str, values: dict[str, Any] | None = None, namespace: str = "imex-dra"
) -> list[dict[str, Any]]:
    """The objects that an installation of the release `r` makes, with those of its test. `values` are by path. Not
    to be changed: other tests see the same objects."""
    given = [f"--set-json={path}={json.dumps(value)}" for path, value in (values or {}).items()]
    return [*_rendered(f"--namespace={namespace}", *options, *given)]


@cache
def _rendered(*words: str) -> tuple[dict[str, Any], ...]:
    text = helm("template", "r", str(CHART), *words)
    return tuple(document for document in yaml.load_all(text, yaml.CSafeLoader) if document)
