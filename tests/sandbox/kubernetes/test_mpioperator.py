from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes import mpioperator

MANIFEST = """\
apiVersion: v1
kind: Namespace
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
description: |
  kind: Deployment
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: mpi-operator
"""


def test_the_manifest_is_applied_without_its_deployment() -> None:
    assert mpioperator.without_deployment(MANIFEST) == MANIFEST.partition("\n---\napiVersion: apps/v1")[0]


def test_a_missing_manifest_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mpi-operator"
    program.touch(mode=0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(
        Misconfigured, match=r"mpi-operator\.yaml is missing: remove .*mpi-operator and run `imex up`"
    ):
        mpioperator.manifest()
    program.with_suffix(".yaml").write_text(MANIFEST)
    assert mpioperator.manifest().read_text() == MANIFEST
