"""A support bundle of simulated racks: the answers of nvidia-imex-ctl on every node, or why there are none."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from imex_sandbox.cluster.handle import Cluster
from imex_sandbox.cluster.settings import KUBERNETES

pytestmark = [pytest.mark.racks, pytest.mark.timeout(300)]


def test_a_bundle_has_what_nvidia_imex_ctl_said_on_every_node(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    flags = ["collect", f"--file={file}", f"--kubeconfig={cluster.kubeconfig}"]
    command = [sys.executable, "-m", "imex_dra.cli", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    with tarfile.open(file) as bundle:
        names = [name for name in bundle.getnames() if "/nvidia-imex-ctl/" in name]
        answers = [content.read().decode() for name in names if (content := bundle.extractfile(name))]
    if os.environ.get("IMEX_CONTROL_PLANE") == KUBERNETES:
        # A real API server does not connect to loopback addresses, which simulated nodes have.
        assert done.stderr.startswith("not collected: nvidia-imex-ctl on r0-n00, r0-n01, ")
        assert answers == []
    else:
        assert done.stderr == ""
        assert {Path(name).stem for name in names} == cluster.nodes.keys()
        assert all("$ nvidia-imex-ctl -q  # 20" in one and "$ nvidia-imex-ctl -N" in one for one in answers)
