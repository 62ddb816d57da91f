"""Builds the images of the Containerfile without a registry and without a container engine.

    python -m tools.image [driver|sandbox] ...

Needs root and a machine with apt. The base image is made by mmdebstrap, the images are built by buildah; both come
from Debian and are extracted into the cache, which changes nothing else on the machine. In the cache are also the
layers of former builds, and the result: an OCI archive with a software bill of materials beside it, named by the
hash of everything that goes into it.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import click

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes import packages
from imex_sandbox.kubernetes.binaries import cache_root
from tools.sbom import Archive, document
from tools.sbom import packages as packages_of

ROOT = Path(__file__).parent.parent
NAMES = {"driver": "imex-dra", "sandbox": "imex-dra-sandbox"}
SUITE = "bookworm"
VERSION_FILE = Path("src/imex_dra/__init__.py")

_SOURCES = (
    "Containerfile",
    ".containerignore",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "requirements",
    "deploy",
)
_CODE = ("src", "sandbox")
_SECRETS = {"pip": Path("/etc/pip.conf"), "certificates": Path("/etc/ssl/certs/ca-certificates.crt")}
_UNUSED = ("usr/share/doc/*", "usr/share/locale/*", "usr/share/man/*", "usr/share/info/*")
_LAYERS = 200
"""Of former builds; if there are more, the next one starts without them. Most have a few megabytes."""
_KEPT = 4
"""Archives of each image: other checkouts use the same cache."""


class Image(NamedTuple):
    name: str
    """With its tag, as pods name it."""
    archive: Path

    @property
    def bill_of_materials(self) -> Path:
        return self.archive.with_suffix(".spdx.json")


def build(target: str, tree: Path = ROOT) -> Image:
    """From the sources in `tree`, and only if the archive of exactly these is not in the cache."""
    if missing := why_not():
        raise Misconfigured(missing)
    archive = cache_root() / "images" / f"{NAMES[target]}-{_source_hash(tree)}.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    image = Image(f"localhost/{NAMES[target]}:{_version(tree)}", archive)
    # One at a time: what another process is building may be just this image, or share most of its layers.
    with _lock(archive.parent / "lock"):
        if not image.bill_of_materials.exists():
            _build(target, image, tree)
            _remove_former(target, archive.parent)
    return image


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_former(target: str, directory: Path) -> None:
    archives = directory.glob(f"{NAMES[target]}-[0-9a-f]*.tar")
    for former in sorted(archives, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        Image("", former).bill_of_materials.unlink(missing_ok=True)
        former.unlink()


def why_not() -> str:
    """What this machine needs to build images; empty if it can."""
    if os.geteuid() != 0:
        return "images are built by root only: run this as root, or use podman build with the Containerfile"
    if not packages.has_apt():
        return "buildah and mmdebstrap come from Debian, and this machine has no apt-get: use podman build instead"
    return ""


def _build(target: str, image: Image, tree: Path) -> None:
    buildah = Buildah(cache_root() / "buildah")
    base = f"localhost/imex-dra-base:{_base_hash()}"
    if not buildah.has(base):
        buildah.import_base(base, _bootstrap())
    buildah.build(target, image.name, base, tree)
    part = image.archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    buildah.export(image.name, part)
    part.rename(image.archive)
    archive = Archive(image.archive)
    bill = document(image.name, archive.digest, packages_of(archive.files()), datetime.now(UTC))
    archive.close()
    # Last: an image without it is not complete.
    image.bill_of_materials.write_text(json.dumps(bill, indent=1))


class Buildah:
    """buildah from an extracted package, with its own storage.

    It executes itself with an empty environment, so a variable cannot tell it where its libraries are. A cache of
    the dynamic linker that knows them is mounted, in a mount namespace of its own.
    """

    def __init__(self, directory: Path) -> None:
        self._package = packages.extract("buildah", ("buildah",))
        if len(list(directory.glob("graph/overlay/*"))) > _LAYERS:
            shutil.rmtree(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._linker_cache = directory / "ld.so.cache"
        self._write_linker_cache(directory / "ld.so.conf")
        self._storage = directory / "storage.conf"
        # Without a driver, buildah takes overlay where it works.
        self._storage.write_text(f'[storage]\nrunroot = "{directory}/run"\ngraphroot = "{directory}/graph"\n')

    def has(self, name: str) -> bool:
        return self._run("images", "--quiet", name, check=False).returncode == 0

    def import_base(self, name: str, tree: Path) -> None:
        context = tree.parent / "context"
        context.mkdir(exist_ok=True)
        (context / "Containerfile").write_text('FROM scratch\nADD base.tar /\nCMD ["/bin/sh"]\n')
        tree.rename(context / "base.tar")
        self._run("build", *self._options(), f"--tag={name}", str(context))
        shutil.rmtree(context)

    def build(self, target: str, name: str, base: str, tree: Path) -> None:
        secrets = [f"--secret=id={id},src={path}" for id, path in _SECRETS.items() if path.exists()]
        options = ["--layers", f"--target={target}", f"--tag={name}", f"--build-arg=BASE={base}", *secrets]
        files = [f"--file={tree / 'Containerfile'}", f"--ignorefile={tree / '.containerignore'}"]
        self._run("build", *self._options(), *options, *files, str(tree))

    def export(self, name: str, archive: Path) -> None:
        self._run("push", self._policy(), name, f"oci-archive:{archive}:{name}")

    def _options(self) -> list[str]:
        return [self._policy(), "--isolation=chroot", "--format=oci"]

    def _policy(self) -> str:
        return f"--signature-policy={self._package / 'etc/containers/policy.json'}"

    def _write_linker_cache(self, config: Path) -> None:
        directories = sorted(path for path in self._package.rglob("*-linux-gnu") if path.is_dir())
        config.write_text("\n".join(["include /etc/ld.so.conf", *map(str, directories), ""]))
        _run("/sbin/ldconfig", "-C", str(self._linker_cache), "-f", str(config))

    def _run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        mount = f'mount --bind {self._linker_cache} /etc/ld.so.cache && exec "$@"'
        program = str(self._package / "usr/bin/buildah")
        argv = ["unshare", "--mount", "sh", "-c", mount, "buildah", program, *words]
        environment = os.environ | {
            "CONTAINERS_STORAGE_CONF": str(self._storage),
            "CONTAINERS_CONF": str(self._package / "usr/share/containers/containers.conf"),
        }
        return _run(*argv, env=environment, check=check)


def _bootstrap() -> Path:
    """A minimal Debian, as a tar archive in the cache."""
    directory = cache_root() / "base"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    programs = packages.extract("mmdebstrap", ("mmdebstrap",)) / "usr/bin"
    # It calls programs of its package. In a mount namespace its mounts end with it, also if it is killed.
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    mmdebstrap = ("mmdebstrap", "--mode=root", "--variant=minbase", SUITE, str(directory / "root"))
    _run("unshare", "--mount", *mmdebstrap, env=environment)
    # Not by dpkg's path-exclude: mmdebstrap 1.3.5 hung with it.
    excluded = [f"--exclude=./{pattern}" for pattern in _UNUSED]
    tree, archive = directory / "root", directory / "base.tar"
    _run("tar", "--create", f"--file={archive}", f"--directory={tree}", "--numeric-owner", *excluded, ".")
    shutil.rmtree(tree)
    return archive


def _base_hash() -> str:
    return hashlib.sha256(" ".join([SUITE, platform.machine(), *_UNUSED]).encode()).hexdigest()[:12]


def _source_hash(tree: Path) -> str:
    digest = hashlib.sha256(SUITE.encode())
    for path in source_files(tree):
        digest.update(f"{path.relative_to(tree)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _version(tree: Path) -> str:
    (version,) = re.findall(r'__version__ = "(.+)"', (tree / VERSION_FILE).read_text())
    return str(version)


def source_files(tree: Path = ROOT) -> Iterator[Path]:
    """Everything that goes into the images."""
    for name in (*_SOURCES, *_CODE):
        found = [tree / name] if (tree / name).is_file() else sorted((tree / name).rglob("*"))
        yield from (path for path in found if path.is_file() and "__pycache__" not in path.parts)


def _run(*argv: str, env: dict[str, str] | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if check and done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise Misconfigured(f"{' '.join(argv[:8])} failed:\n{tail}")
    return done


def report(image: Image) -> str:
    archive = Archive(image.archive)
    size, layers = archive.compressed_size, len(archive.manifest["layers"])
    archive.close()
    count = len(json.loads(image.bill_of_materials.read_text())["packages"]) - 1
    summary = f"{image.name}: {size / 1e6:.0f} MB in {layers} layers, {count} packages"
    return "\n  ".join([summary, str(image.archive), str(image.bill_of_materials)])


def main() -> int:
    try:
        for target in sys.argv[1:] or NAMES:
            click.echo(report(build(target)))
    except Misconfigured as error:
        click.echo(str(error), err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
