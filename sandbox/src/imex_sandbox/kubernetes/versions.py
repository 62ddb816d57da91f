"""The versions of Kubernetes that the sandbox runs, and the version that a program has.

`IMEX_KUBERNETES` selects a minor version for a process and its children, such as 1.34. Each version has its own
directory in the cache and its own Go module file, so versions do not replace each other.
"""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

from imex_dra.base.errors import Misconfigured

VARIABLE = "IMEX_KUBERNETES"
DEFAULT = "1.36"
KUBERNETES = {"1.34": "v1.34.10", "1.36": "v1.36.4", "1.37": "v1.37.1"}

RELEASED = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
"""The programs of a Kubernetes release that the sandbox runs. All have the version of the release."""

_VERSION_WITHIN_SECONDS = 20


def selected() -> str:
    """The minor version."""
    minor = os.environ.get(VARIABLE) or DEFAULT
    if minor not in KUBERNETES:
        raise Misconfigured(
            f"{VARIABLE} is {minor}: the sandbox runs Kubernetes {', '.join(KUBERNETES)}; without the variable,"
            f" {DEFAULT}"
        )
    return minor


def kubernetes() -> str:
    """The release of the selected minor version, such as v1.36.4."""
    return KUBERNETES[selected()]


def minor_of(version: str) -> str:
    return ".".join(version.removeprefix("v").split(".")[:2])


def module_file(version: str) -> str:
    """The file in the Go module that requires this version of Kubernetes."""
    minor = minor_of(version)
    return "go.mod" if minor == DEFAULT else f"go-{minor}.mod"


def version_of(program: Path) -> str:
    """The version that one of the programs in `RELEASED` reports about itself. Empty if it reports none."""
    return _reported_version(program, program.stat().st_mtime_ns)


@cache
def _reported_version(program: Path, _modified: int) -> str:
    words = ["version", "--client"] if program.name == "kubectl" else ["--version"]
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=_VERSION_WITHIN_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"v\d+\.\d+\.\d+\S*", done.stdout)
    return found[0] if found else ""
