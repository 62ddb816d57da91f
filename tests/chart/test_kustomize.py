"""The kustomize base has the objects of the chart."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from imex_sandbox.kubernetes.binaries import find
from tests.chart.helm import require
from tests.paths import DEPLOY, ROOT
from tools import kustomize

Key = tuple[str, str]


@pytest.fixture(autouse=True)
def _helm() -> None:
    require()


def built(directory: Path) -> dict[Key, dict[str, Any]]:
    argv = [str(find("kubectl")), "kustomize", str(directory)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    objects = yaml.load_all(done.stdout, yaml.CSafeLoader)
    return {(found["kind"], found["metadata"]["name"]): found for found in objects}


def test_the_files_are_up_to_date() -> None:
    stale = [path for path, content in kustomize.files().items() if path.read_bytes() != content]
    assert [str(path.relative_to(ROOT)) for path in stale] == [], "run make kustomize"


def test_kustomize_builds_what_helm_installs() -> None:
    chart = {(found["kind"], found["metadata"]["name"]): found for found in kustomize.rendered()}
    tests = {("ComputeDomain", "imex-dra-test"), ("Pod", "imex-dra-test")}
    base = built(kustomize.DIRECTORY)
    assert base.keys() == chart.keys() - tests | {("Namespace", "imex-dra")}
    for key, found in base.items():
        assert "helm.sh" not in yaml.safe_dump(found["metadata"])
        if key[0] != "Namespace":
            # Labels and annotations of Helm are the only difference.
            assert without_metadata(found) == without_metadata(chart[key])


def without_metadata(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "metadata"}


def test_an_overlay_names_another_image(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for file in (DEPLOY / "kustomize/base").iterdir():
        (base / file.name).write_bytes(file.read_bytes())
    image = {"name": "imex-dra", "newName": "registry.example/imex-dra", "newTag": "1"}
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["../base"], "images": [image]}))
    objects = built(overlay)
    for key in (("DaemonSet", "imex-daemon"), ("DaemonSet", "imex-node"), ("Deployment", "imex-webhook")):
        (container,) = objects[key]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "registry.example/imex-dra:1"
