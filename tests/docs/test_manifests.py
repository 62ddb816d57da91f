"""A real API server accepts the manifests of the documentation: fields that do not exist are errors."""

import uuid

import pytest
import yaml

from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.kubectl import to_yaml
from tests.docs.pages import ALL_BLOCKS
from tests.lint.marked import marked

pytestmark = pytest.mark.kube

NOT_SERVED = {
    "JobSet", "LeaderWorkerSet", "MPIJob", "PyTorchJob", "RayCluster", "RayJob", "RayService",
    "Kustomization", "Cluster", "Faults", "StandIns",
}  # fmt: skip
"""Kinds of operators, which this control plane does not have, and of programs. MPIJobs are run by
`tests/sandbox/mpi/racks`, files of the sandbox are read by `test_running.py`."""


def test_the_api_server_accepts_every_manifest(control_plane: ControlPlane) -> None:
    """A dry run, because many have the same names. Bad examples are left out; lint finds what they say."""
    namespace = f"docs-{uuid.uuid4().hex[:6]}"
    kubectl = control_plane.kubectl
    kubectl("create", "namespace", namespace)
    kubectl("-n", namespace, "create", "serviceaccount", "default")  # as a controller would
    documents = []
    for block in ALL_BLOCKS:
        if block.kind == "yaml" and not marked(block.text) and "not run" not in block.marks:
            documents += [one for one in yaml.safe_load_all(block.text) if one["kind"] not in NOT_SERVED]
    for one in documents:
        one["metadata"] |= {"namespace": namespace} if one["kind"] != "Namespace" else {}
    assert len(documents) > 50
    kubectl("apply", "--dry-run=server", "-f", "-", stdin=to_yaml(*documents), within=120)
