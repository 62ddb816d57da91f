"""Programs that a real node needs from Debian: runc, busybox and the CNI plugins.

Packages are extracted into the cache. This changes nothing else on the machine and does not require root. apt
sources are those of the machine. Its package lists are used too, or, if it has none, lists that are downloaded
for the purpose. A directory of extracted packages appears complete or not at all. On a machine without apt, its
installed programs are used.
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
from imex_sandbox.kubernetes.binaries import cache_root, find, find_built

_NODE_PACKAGES = ("runc", "containernetworking-plugins", "busybox-static")
_CNI_PLUGINS = ("bridge", "host-local", "loopback")
_CNI_DIRECTORIES = (Path("/opt/cni/bin"), Path("/usr/libexec/cni"), Path("/usr/lib/cni"))


def runc() -> Path:
    """The one that `make kube` built, if it could: Debian's may be too old for pods with user namespaces."""
    if built := find_built("runc"):
        return built
    return _node_packages() / "usr/sbin/runc" if has_apt() else find("runc")


def busybox() -> Path:
    """Statically linked."""
    return _node_packages() / "bin/busybox" if has_apt() else find("busybox")


def cni_plugins() -> Path:
    """The directory that contains them."""
    candidates = [_node_packages() / "usr/lib/cni"] if has_apt() else _CNI_DIRECTORIES
    for directory in candidates:
        if all(shutil.which(plugin, path=str(directory)) for plugin in _CNI_PLUGINS):
            return directory
    raise Misconfigured(
        f"no CNI plugins in {', '.join(map(str, candidates))}: install the package containernetworking-plugins"
    )


def _node_packages() -> Path:
    return extract("tools", _NODE_PACKAGES)


def has_apt() -> bool:
    return all(shutil.which(tool) for tool in ("apt-get", "dpkg"))


def extract(name: str, packages: Sequence[str], *, all_dependencies: bool = False) -> Path:
    """A directory with the extracted packages and their dependencies.

    Dependencies that are installed on the machine are not included, unless `all_dependencies` is set.
    """
    target = _directory() / f"{name}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"
    if target.is_dir():
        return target
    with _lock(), tempfile.TemporaryDirectory(dir=_directory(), prefix=".unpack-") as temporary:
        # Another process may have extracted them while this one waited for the lock.
        if not target.is_dir():
            click.echo(f"extracting {', '.join(packages)} into {target}", err=True)
            _extract(packages, Path(temporary), all_dependencies=all_dependencies)
            (Path(temporary) / "root").rename(target)
    return target


def _extract(packages: Sequence[str], temporary: Path, *, all_dependencies: bool) -> None:
    if not has_apt():
        raise Misconfigured(
            f"{', '.join(packages)} cannot be downloaded, because this machine has no apt-get: install them"
        )
    for directory in ("archives/partial", "lists/partial", "root"):
        (temporary / directory).mkdir(parents=True)
    (temporary / "status").touch()
    # With an empty status file, apt considers no package as installed.
    _download(packages, temporary, [f"-oDir::State::status={temporary}/status"] if all_dependencies else [])
    for archive in (temporary / "archives").glob("*.deb"):
        subprocess.run(["dpkg", "--extract", archive, temporary / "root"], check=True)


def _download(packages: Sequence[str], temporary: Path, options: Sequence[str]) -> None:
    install = ["install", "--download-only", "--yes", "--no-install-recommends", *packages]
    if _apt(temporary, *options, *install).returncode == 0:
        return
    lists = f"-oDir::State::lists={temporary}/lists/"
    _apt(temporary, lists, "update")
    done = _apt(temporary, lists, *options, *install)
    if done.returncode:
        raise Misconfigured(f"apt-get could not download {', '.join(packages)}: {done.stderr.strip()}")


def _apt(temporary: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Does not use the locks, caches and sandbox user of the machine."""
    options = [
        "-oDebug::NoLocking=1",
        "-oAPT::Sandbox::User=",
        f"-oDir::Cache::archives={temporary}/archives/",
        "-oDir::Cache::pkgcache=",
        "-oDir::Cache::srcpkgcache=",
    ]
    return subprocess.run(["apt-get", "-qq", *options, *words], capture_output=True, text=True, check=False)


def _directory() -> Path:
    directory = cache_root() / "debian"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def _lock() -> Iterator[None]:
    with (_directory() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in _directory().glob(".unpack-*"):
            shutil.rmtree(stale)
        yield
