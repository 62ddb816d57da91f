"""The real helm on the chart of this tree."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from imex_dra.cli import imex
from imex_dra.cli.commands import find_command
from imex_sandbox.kubernetes import binaries
from tests.paths import DEPLOY

CHART = DEPLOY / "helm/imex-dra"


def require() -> None:
    if binaries.missing(["helm"]):
        pytest.skip("helm not found; run make kube to build it")


def parsed(name: str, *flags: str) -> dict[str, Any]:
    """What a program of `imex` makes of its flags; click.UsageError if it does not know one."""
    program = find_command(name)
    assert program is not None
    # With the parent: click remembers the names of the help flag, which come from there, for later contexts.
    return program.load().make_context(name, [*flags], parent=imex.make_context("imex", [name])).params


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
