"""Programs of an official Kubernetes release, downloaded from a mirror instead of built from source.

`IMEX_KUBERNETES_MIRROR` is the URL of a server with the layout of dl.k8s.io:

    <mirror>/release/v1.36.4/bin/linux/amd64/kube-apiserver
    <mirror>/release/v1.36.4/bin/linux/amd64/kube-apiserver.sha256

A program is used only if its checksum matches and it reports the version that was asked for. The checksum comes
from the same server: it detects a damaged download, but does not prove who made the program. A mirror that is
set but cannot serve is an error: a build that takes minutes instead would hide the mistake.
"""

import hashlib
import http.client
import os
import platform
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes import versions
from imex_sandbox.kubernetes.progress import Progress

VARIABLE = "IMEX_KUBERNETES_MIRROR"
TIMEOUT_SECONDS = 30

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CHUNK = 1 << 20


def mirror() -> str:
    """The URL, or an empty string."""
    url = os.environ.get(VARIABLE, "").rstrip("/")
    if url and not url.startswith(("http://", "https://")):
        raise Misconfigured(f"{VARIABLE} is {url}: set it to the URL of a mirror, with http:// or https://")
    return url


def download(url: str, program: Path) -> None:
    """Write the program of this name from the mirror, in the selected version."""
    version = versions.kubernetes()
    source = f"{url}/release/{version}/bin/linux/{_architecture()}/{program.name}"
    with _open(f"{source}.sha256") as response:
        expected = _checksum(response.read(_CHUNK), source)
    if (actual := _save(source, program)) != expected:
        raise Misconfigured(
            f"{source} has the SHA-256 checksum {actual}, but the mirror's {program.name}.sha256 says {expected}:"
            f" try again, or set {VARIABLE} to another mirror"
        )
    program.chmod(0o755)
    if (reported := versions.version_of(program)) != version:
        raise Misconfigured(
            f"{source} reports {reported or 'no version'} instead of {version}: set {VARIABLE} to another mirror"
        )


def _architecture() -> str:
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise Misconfigured(f"there is no mirror layout for the architecture {machine}: unset {VARIABLE}")
    return _ARCHITECTURES[machine]


def _checksum(content: bytes, source: str) -> str:
    """The file contains the checksum, sometimes followed by the name of the program."""
    found = re.match(rb"([0-9a-fA-F]{64})\b", content)
    if not found:
        raise Misconfigured(f"{source}.sha256 contains no SHA-256 checksum: set {VARIABLE} to another mirror")
    return found[1].decode().lower()


def _save(source: str, program: Path) -> str:
    """Return the checksum of what was saved."""
    progress = Progress(f"downloading {program.name}")
    digest = hashlib.sha256()
    with _open(source) as response, program.open("wb") as file:
        while chunk := response.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
            progress.show(f"{file.tell() >> 20} MiB")
        progress.finish(f"{file.tell() >> 20} MiB")
    return digest.hexdigest()


@contextmanager
def _open(url: str) -> Iterator[IO[bytes]]:
    """Errors while the response is read count, too."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            yield response
    except urllib.error.HTTPError as error:
        error.close()
        raise Misconfigured(
            f"the mirror has no {url} (HTTP {error.code}): set {VARIABLE} to a mirror with the layout of"
            " dl.k8s.io, or unset it to build from source"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise Misconfigured(
            f"the mirror does not answer for {url}: {reason}. Try again, or unset {VARIABLE} to build from source"
        ) from error
