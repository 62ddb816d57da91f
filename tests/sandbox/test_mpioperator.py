from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes import mpioperator

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


def test_everything_is_installed_but_the_deployment_which_a_process_stands_for() -> None:
    assert mpioperator.without_deployment(MANIFEST) == MANIFEST.partition("\n---\napiVersion: apps/v1")[0]


def test_a_program_without_its_manifest_is_a_clear_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mpi-operator"
    program.touch(mode=0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(Misconfigured, match=r"mpi-operator\.yaml is missing.*make kube"):
        mpioperator.manifest()
    program.with_suffix(".yaml").write_text(MANIFEST)
    assert mpioperator.manifest().read_text() == MANIFEST
