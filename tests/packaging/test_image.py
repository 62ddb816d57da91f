"""The images that buildah builds from the Containerfile."""

import json
import re
import subprocess
from pathlib import Path

import pytest

import imex_dra
from imex_sandbox.kubernetes import packages
from tests.paths import ROOT
from tools import image
from tools.sbom import Archive

NOT_THERE = tuple(f"bin/{name}" for name in ("cc", "gcc", "g++", "clang", "rustc", "go", "pip", "pip3"))


class Content:
    """Of an image, without running it."""

    def __init__(self, target: str) -> None:
        self.image = image.build(target)
        archive = Archive(self.image.archive)
        self.config = archive.config["config"]
        self.paths = {entry.name.removeprefix("./") for layer in archive.layers() for entry in layer}
        archive.close()
        bill = json.loads(self.image.bill_of_materials.read_text())
        self.packages = {(package["name"], package["versionInfo"]) for package in bill["packages"]}

    def names(self) -> set[str]:
        return {name for name, _ in self.packages}


@pytest.mark.node
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", image.NAMES)
def test_an_image_is_not_root_and_has_no_compiler_and_no_pip(target: str) -> None:
    content = Content(target)
    assert content.config["User"] == "65532:65532"
    assert content.config["Entrypoint"] == ["imex"]
    assert [path for path in content.paths if path.endswith(NOT_THERE)] == []
    assert {f"opt/imex/bin/{name}" for name in ("imex", "imex-supervisor", "imex-chroot")} <= content.paths
    # For imex-chroot.
    assert {"mount", "util-linux"} <= content.names()
    assert ("imex-dra", imex_dra.__version__) in content.packages
    assert {"libc6", "python3", "grpcio"} <= content.names()
    summary, *files = image.report(content.image).splitlines()
    assert re.fullmatch(
        rf"{content.image.name}: \d+ MB in \d+ layers, {len(content.packages) - 1} packages", summary
    )
    assert [file.strip() for file in files] == [
        str(content.image.archive),
        str(content.image.bill_of_materials),
    ]
    # Only the image for simulated hardware has what simulates it.
    assert ("imex-sandbox" in content.names()) == (target == "sandbox")
    assert ("opt/imex/bin/soft-nvidia-imex" in content.paths) == (target == "sandbox")


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.11", "3.13"])
@pytest.mark.parametrize("target", image.NAMES)
def test_on_aarch64_every_dependency_has_a_wheel(target: str, python: str, tmp_path: Path) -> None:
    """The images of GB200 nodes: the Containerfile has no compiler. With the Python of Debian 12 and 13."""
    platform = ("--python-platform=aarch64-unknown-linux-gnu", f"--python-version={python}")
    options = (
        "--dry-run",
        "--quiet",
        "--only-binary=:all:",
        "--require-hashes",
        f"--target={tmp_path}",
        *platform,
    )
    requirements = ROOT / "requirements" / f"{target}.txt"
    done = subprocess.run(
        ["uv", "pip", "install", *options, "-r", requirements],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_without_root_or_apt_a_sentence_says_what_to_do_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert image.why_not() == (
        "images are built by root only: run this as root, or use podman build with the Containerfile"
    )
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(packages, "has_apt", lambda: False)
    assert image.why_not().endswith("this machine has no apt-get: use podman build instead")
