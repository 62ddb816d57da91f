"""The image with Python and our own programs: imex-dra.io/test/imex:1.

Debian's Python and our pinned dependencies are one layer, made once and cached by what is in it. Our wheel is
another, made anew from the source at each call. Everything is compiled beforehand, so that a container starts
as fast as an installed program does.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes import images, oci, packages
from imex_dra.sandbox.kubernetes.binaries import cache_root, find
from imex_dra.sandbox.kubernetes.build import ROOT
from imex_dra.sandbox.kubernetes.oci import Image

IMEX = "imex-dra.io/test/imex:1"

_PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
_SITE = "usr/lib/python3/dist-packages"
_PINS = ROOT / "requirements" / "dev.txt"
_NEEDLESS = ("usr/share/doc", "usr/share/locale", "usr/share/man", "usr/share/info", "usr/lib/*/gconv")
_SCRIPT = "#!/usr/bin/python3\nimport sys\nfrom imex_dra.cli import main\nsys.exit(main())\n"


def imex() -> Path:
    if not _PINS.is_file():
        raise Misconfigured(f"{IMEX} can only be made in a source checkout: there is no {_PINS}")
    debian = packages.unpacked("python", _PACKAGES, alone=True)
    base = cache_root() / "images" / f"python-{_key()}.layer"
    if not base.exists():
        _write_base(debian, base)
    with tempfile.TemporaryDirectory() as scratch:
        own = _write_own(debian, Path(scratch))
        return oci.write(images.archive("imex"), Image(IMEX, [base, own], ["/usr/local/bin/imex"]))


def _key() -> str:
    content = [platform.machine(), *_PACKAGES, *_dependencies(), _PINS.read_text()]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:12]


def _dependencies() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [str(dependency) for dependency in project["dependencies"]]


def _write_base(debian: Path, layer: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        shutil.copytree(debian, tree, symlinks=True)
        for needless in (path for pattern in _NEEDLESS for path in tree.glob(pattern)):
            shutil.rmtree(needless)
        (tree / "tmp").mkdir()
        (tree / "tmp").chmod(0o1777)
        _install_dependencies(tree)
        _compile(debian, tree)
        programs, links = images.shell()
        missing = {link: target for link, target in links.items() if not (tree / link).is_file()}
        oci.write_layer(layer, {".": tree, **programs}, missing | _merged(tree))


def _install_dependencies(tree: Path) -> None:
    version = next((tree / "usr/lib").glob("python3.*")).name.removeprefix("python")
    _run(
        *(find("uv"), "pip", "install", "--quiet", "--only-binary=:all:", f"--python-version={version}"),
        *(f"--target={tree / _SITE}", f"--constraint={_PINS}", *_dependencies()),
    )


def _write_own(debian: Path, scratch: Path) -> Path:
    _run(sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={scratch}", cwd=ROOT)
    tree = scratch / "tree"
    (wheel,) = scratch.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tree / _SITE)
    _compile(debian, tree)
    script = scratch / "imex"
    script.write_text(_SCRIPT)
    script.chmod(0o755)
    return oci.write_layer(scratch / "layer", {".": tree, "usr/local/bin/imex": script})


def _compile(debian: Path, tree: Path) -> None:
    """By the image's own Python, which runs from where it was unpacked; tracebacks show paths in the image."""
    libraries = ":".join(str(path) for path in debian.glob("*lib/*-linux-gnu*"))
    options = ["-q", "--invalidation-mode=unchecked-hash", f"-s{tree}", "-p/"]
    environment = {"PYTHONHOME": str(debian / "usr"), "LD_LIBRARY_PATH": libraries}
    _run(debian / "usr/bin/python3", "-m", "compileall", *options, tree, env=environment)


def _merged(tree: Path) -> dict[str, str]:
    """Newer Debian has these as links, which no package of ours brings."""
    return {name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin") if not (tree / name).exists()}


def _run(*argv: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Misconfigured(f"making {IMEX}: {argv[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
