"""The image with Python, the driver and the sandbox: imex-dra.io/test/imex:1.

Python from Debian and the pinned dependencies are one layer, which is cached by its content. The wheels of this
source tree are another layer, which is built at each call. All modules are compiled, so that a container starts as
fast as an installed program.
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
from imex_sandbox.kubernetes import images, oci, packages
from imex_sandbox.kubernetes.binaries import cache_root, find
from imex_sandbox.kubernetes.oci import Image
from tests.paths import ROOT

NAME = "imex-dra.io/test/imex:1"

_PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
_SITE = "usr/lib/python3/dist-packages"
_PINS = ROOT / "requirements" / "dev.txt"
_UNUSED = ("usr/share/doc", "usr/share/locale", "usr/share/man", "usr/share/info", "usr/lib/*/gconv")
_SCRIPT = "#!/usr/bin/python3\nimport sys\nfrom imex_dra.cli import main\nsys.exit(main())\n"


def build() -> Path:
    """The OCI archive."""
    debian = packages.extract("python", _PACKAGES, all_dependencies=True)
    base = cache_root() / "images" / f"python-{_cache_key()}.layer"
    if not base.exists():
        _write_base_layer(debian, base)
    with tempfile.TemporaryDirectory() as temporary:
        wheels = _write_wheel_layer(debian, Path(temporary))
        return oci.write(images.archive("imex"), Image(NAME, [base, wheels], ["/usr/local/bin/imex"]))


def _cache_key() -> str:
    content = [platform.machine(), *_PACKAGES, *_dependencies(), _PINS.read_text()]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:12]


def _dependencies() -> list[str]:
    """The dependencies of both distributions, except for their dependency on each other."""
    files = (ROOT / "pyproject.toml", ROOT / "sandbox/pyproject.toml")
    projects = [tomllib.loads(file.read_text())["project"] for file in files]
    return [text for project in projects for text in project["dependencies"] if not text.startswith("imex-dra")]


def _write_base_layer(debian: Path, layer: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "root"
        shutil.copytree(debian, root, symlinks=True)
        for unused in (path for pattern in _UNUSED for path in root.glob(pattern)):
            shutil.rmtree(unused)
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        _install_dependencies(root)
        _compile(debian, root)
        programs, applets = images.busybox_files()
        missing = {link: target for link, target in applets.items() if not (root / link).is_file()}
        oci.write_layer(layer, {".": root, **programs}, missing | _merged_usr_links(root))


def _install_dependencies(root: Path) -> None:
    version = next((root / "usr/lib").glob("python3.*")).name.removeprefix("python")
    _run(
        *(find("uv"), "pip", "install", "--quiet", "--only-binary=:all:", f"--python-version={version}"),
        *(f"--target={root / _SITE}", f"--constraint={_PINS}", *_dependencies()),
    )


def _write_wheel_layer(debian: Path, temporary: Path) -> Path:
    hatchling = (sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={temporary}")
    for project in (ROOT, ROOT / "sandbox"):
        _run(*hatchling, cwd=project)
    root = temporary / "root"
    for wheel in temporary.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(root / _SITE)
    _compile(debian, root)
    script = temporary / "imex"
    script.write_text(_SCRIPT)
    script.chmod(0o755)
    return oci.write_layer(temporary / "layer", {".": root, "usr/local/bin/imex": script})


def _compile(debian: Path, root: Path) -> None:
    """With the Python of the image, run from the extracted packages. Tracebacks show paths in the image."""
    libraries = ":".join(str(path) for path in debian.glob("*lib/*-linux-gnu*"))
    options = ["-q", "--invalidation-mode=unchecked-hash", f"-s{root}", "-p/"]
    environment = {"PYTHONHOME": str(debian / "usr"), "LD_LIBRARY_PATH": libraries}
    _run(debian / "usr/bin/python3", "-m", "compileall", *options, root, env=environment)


def _merged_usr_links(root: Path) -> dict[str, str]:
    """Newer releases of Debian have these links, but none of the extracted packages contains them."""
    return {name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin") if not (root / name).exists()}


def _run(*argv: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Misconfigured(f"cannot build {NAME}: {argv[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
