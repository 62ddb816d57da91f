"""Debian packages unpacked aside, in the cache: nothing on the machine is changed, and no root is needed.

The machine's own apt sources say where packages come from; its package lists are used if it has any, else lists
of our own. A tree appears complete or not at all.
"""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes.binaries import cache_root


def unpacked(tree: str, packages: Sequence[str], *, alone: bool = False) -> Path:
    """A directory with these packages and what they need beyond the machine's; or all they need, if alone."""
    target = _root() / f"{tree}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"
    if target.is_dir():
        return target
    with _exclusively(), tempfile.TemporaryDirectory(dir=_root(), prefix=".unpack-") as scratch:
        if not target.is_dir():
            click.echo(f"unpacking {', '.join(packages)} into {target}", err=True)
            _unpack(packages, Path(scratch), alone=alone)
            (Path(scratch) / "tree").rename(target)
    return target


def available() -> bool:
    return all(shutil.which(tool) for tool in ("apt-get", "dpkg"))


def _unpack(packages: Sequence[str], scratch: Path, *, alone: bool) -> None:
    if not available():
        raise Misconfigured(f"{', '.join(packages)} can't be fetched: this machine has no apt-get. Install them.")
    for directory in ("archives/partial", "lists/partial", "tree"):
        (scratch / directory).mkdir(parents=True)
    (scratch / "status").touch()
    _download(packages, scratch, [f"-oDir::State::status={scratch}/status"] if alone else [])
    for archive in (scratch / "archives").glob("*.deb"):
        subprocess.run(["dpkg", "--extract", archive, scratch / "tree"], check=True)


def _download(packages: Sequence[str], scratch: Path, options: Sequence[str]) -> None:
    install = ["install", "--download-only", "--yes", "--no-install-recommends", *packages]
    if _apt(scratch, *options, *install).returncode == 0:
        return
    own_lists = f"-oDir::State::lists={scratch}/lists/"
    _apt(scratch, own_lists, "update")
    done = _apt(scratch, own_lists, *options, *install)
    if done.returncode:
        raise Misconfigured(f"apt-get could not fetch {', '.join(packages)}: {done.stderr.strip()}")


def _apt(scratch: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Without locks, caches or users of the machine's own."""
    options = [
        "-oDebug::NoLocking=1",
        "-oAPT::Sandbox::User=",
        f"-oDir::Cache::archives={scratch}/archives/",
        "-oDir::Cache::pkgcache=",
        "-oDir::Cache::srcpkgcache=",
    ]
    return subprocess.run(["apt-get", "-qq", *options, *words], capture_output=True, text=True, check=False)


def _root() -> Path:
    root = cache_root() / "debian"
    root.mkdir(parents=True, exist_ok=True)
    return root


@contextmanager
def _exclusively() -> Iterator[None]:
    with (_root() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in _root().glob(".unpack-*"):
            shutil.rmtree(left_over)
        yield
