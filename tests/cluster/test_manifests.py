"""The driver's manifests are found in the source tree and in a wheel, or their absence is explained."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.cluster.manifests import deploy

ROOT = Path(__file__).parents[2]


def test_the_source_tree_has_them() -> None:
    assert deploy() == ROOT / "deploy"


def test_a_wheel_has_them(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={tmp_path}"]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    found = deploy((tmp_path / "site/imex_dra/deploy",))
    names = {str(path.relative_to(found)) for path in found.rglob("*.yaml")}
    assert names == {str(path.relative_to(ROOT / "deploy")) for path in (ROOT / "deploy").rglob("*.yaml")}


def test_without_them_the_error_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=f"neither in {tmp_path}/a nor in {tmp_path}/b: install"):
        deploy((tmp_path / "a", tmp_path / "b"))
